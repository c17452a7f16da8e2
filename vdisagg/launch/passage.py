"""What a tunnel says of itself, in a file beside its log: whether its ports are carried, and if not, why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vdisagg.cluster.snapshot import Observation
    from vdisagg.plan.model import Plan

PASSAGE_FILE = "passage.json"
BEGINNING = "not connected yet"


class Passage(msgspec.Struct, frozen=True):
    """How far a tunnel has come."""

    pid: int
    """The tunnel's: what an earlier one has left says nothing."""
    fault: str
    """Why its ports are not carried at the moment; empty where they are."""


def write(directory: Path, passage: Passage) -> None:
    """Put it in its place whole. Raises OSError."""
    part = directory / f"{PASSAGE_FILE}.part"
    part.write_bytes(msgspec.json.encode(passage))
    part.replace(directory / PASSAGE_FILE)


def faults(plan: Plan, observations: Mapping[str, Observation]) -> dict[str, str]:
    """By tunnel that runs: why it carries nothing at the moment; empty where it does."""
    found = {}
    for tunnel in plan.tunnels:
        seen = observations.get(tunnel.name)
        if seen is not None and seen.state == "running":
            found[tunnel.name] = _fault(Path(tunnel.directory), seen.pid)
    return found


def _fault(directory: Path, pid: int | None) -> str:
    try:
        passage = msgspec.json.decode((directory / PASSAGE_FILE).read_bytes(), type=Passage)
    except (OSError, msgspec.MsgspecError):
        return BEGINNING
    return passage.fault if passage.pid == pid else BEGINNING
