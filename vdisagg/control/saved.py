"""What a controller knows that its successor can't ask anybody for: `controller.json` in its state directory.

An engine says HELLO and its ready payload once in its life, and the front end gives its addresses once. A
new controller that has them goes on with both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from vdisagg.cluster.admin import InstanceState
from vdisagg.cluster.leftovers import PART_SAVED_FILE, SAVED_FILE
from vdisagg.errors import Failure


class SavedFront(msgspec.Struct, frozen=True):
    """The addresses of the front end that is attached: one of each for every API server."""

    inputs: list[str]
    outputs: list[str]


class SavedInstance(msgspec.Struct, frozen=True):
    """One engine."""

    generation: int
    ready: bytes | None
    """Its ready payload; None while it loads."""
    state: InstanceState
    tainted: bool = False
    """Whether its prefix cache is still to be emptied."""


class Saved(msgspec.Struct, frozen=True):
    """The state of one run's controller."""

    created: float
    """When the run's record was made (Unix time): which run this is of."""
    front: SavedFront | None = None
    """None before a front end is attached, and after it has gone."""
    instances: dict[str, SavedInstance] = {}
    links: list[tuple[str, str]] = []
    """Those that were warm, as (prefill, decode)."""


def read(directory: Path, *, created: float, say: Callable[[str], None]) -> Saved | None:
    """What the controller before this one has saved of the run that was `created` then.

    None where there is nothing, or nothing of use; that is said.
    """
    path = directory / SAVED_FILE
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except FileNotFoundError:
        return None
    except OSError as exc:
        say(f"{path}: cannot be read, so nothing is taken over: {exc.strerror}")
        return None
    except msgspec.DecodeError as exc:
        say(f"{path}: not what a controller saves, so nothing is taken over: {exc}")
        return None
    if saved.created != created:
        say(f"{path}: of another run, so nothing is taken over")
        return None
    return saved


def write(directory: Path, saved: Saved) -> None:
    """Put it in its place whole, mode 0600; the process may die at any moment (the machine may not).

    Raises Failure when the disk does not take it.
    """
    part = directory / PART_SAVED_FILE
    try:
        # Made anew each time: an old one's mode would stay.
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(saved))
        part.rename(directory / SAVED_FILE)
    except OSError as exc:
        raise Failure(f"{directory / SAVED_FILE}: cannot be written: {exc.strerror}") from exc
