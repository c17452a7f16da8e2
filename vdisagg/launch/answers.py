"""What runners say to a guard, and a guard's answers as values: the same here and over SSH."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from vdisagg.cluster.record import Started
from vdisagg.cluster.snapshot import Observation
from vdisagg.launch.runner import Found, Mark, Stopped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vdisagg.plan.model import Process, Restart


def job(
    process: Process,
    secrets: Mapping[str, str],
    grace_s: float,
    ticket: str,
    mark: Mark | None,
    switches: str,
    restart: Restart,
) -> dict[str, Any]:
    """What `guard.py start` reads on stdin. `switches`: the folder on the node that holds them."""
    return {
        "name": process.name,
        "kind": process.kind,
        "argv": process.argv,
        "env": {**process.env, **secrets},
        "cwd": process.directory,
        "grace_s": grace_s,
        "ticket": ticket,
        "switches": switches if process.switches else None,
        "mark": msgspec.to_builtins(mark),
        "restart": msgspec.to_builtins(restart),
    }


def starts(
    processes: Sequence[Process], started: Mapping[str, Started]
) -> dict[str, dict[str, Any]]:
    """What `guard.py observe` and `stop` read on stdin: what is recorded of these, by directory."""
    known = ((process.directory, started.get(process.name)) for process in processes)
    return {place: msgspec.to_builtins(one) for place, one in known if one is not None}


def started(process: Process, answer: dict[str, Any]) -> Started:
    """What a start answers."""
    fields = {name: answer[name] for name in Started.__struct_fields__ if name != "directory"}
    return Started(directory=process.directory, **fields)


def observation(answer: dict[str, Any]) -> Observation:
    """What one of `observe`'s answers says."""
    return msgspec.convert(answer, Observation)


def stopped(answer: dict[str, Any]) -> Stopped:
    """What one of `stop`'s answers says."""
    return msgspec.convert(answer, Stopped)


def found(answer: dict[str, Any]) -> Found:
    """What one of `find`'s answers says."""
    process = answer["process"] or {}
    mark = process.get("mark")
    guard = (process["guard_pid"],) if answer["guard_alive"] else ()
    return Found(
        directory=answer["directory"],
        name=process.get("name") or answer["directory"].rpartition("/")[2],
        kind=process.get("kind"),
        mark=msgspec.convert(mark, Mark) if mark is not None else None,
        living=(*answer["members"], *guard),
        started_at=process.get("at"),
    )
