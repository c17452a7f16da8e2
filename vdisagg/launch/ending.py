"""Ends processes in the right order, on all nodes, and reports everything that would not end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vdisagg.errors import Failure, LaunchFailed
from vdisagg.launch.background import at_once
from vdisagg.launch.lookout import by_node
from vdisagg.launch.runner import NOTHING_STARTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vdisagg.cluster.record import Started
    from vdisagg.launch.runner import RunnerFor
    from vdisagg.plan.model import Kind, Process

ORDER: tuple[tuple[Kind, ...], ...] = (
    ("front_end",),
    ("prefill", "decode"),
    ("tunnel", "controller"),
)
"""No new requests first; then the engines, all at once; who watches them goes last."""


class Ended(msgspec.Struct, frozen=True):
    """What came of ending some processes."""

    pids: dict[str, tuple[int, ...]]
    """Pids that were ended, by process."""
    faults: tuple[str, ...]
    """What is left, and why; empty when nothing is."""


def end_processes(
    processes: Iterable[Process],
    runner_for: RunnerFor,
    grace_s: float,
    started: Mapping[str, Started] = NOTHING_STARTED,
) -> Ended:
    """TERM, grace, KILL for every process given and its group; returns once nothing is left, or
    says what is. `started`: what is recorded of them, by name.

    A node that can't be reached holds up none of the others, and is tried once.
    """
    waiting = list(processes)
    pids: dict[str, tuple[int, ...]] = {}
    faults: list[str] = []
    lost: dict[str, str] = {}
    """Why a node can't be asked, by its name."""
    for kinds in ORDER:
        now = by_node(p for p in waiting if p.kind in kinds and p.node not in lost)
        work = {
            node: partial(_end, together, runner_for, grace_s, started)
            for node, together in now.items()
        }
        for node, outcome in at_once(work).items():
            if isinstance(outcome, LaunchFailed):  # the node answers: what else is there is tried
                faults.append(f"{_names(now[node])} on {node}: {outcome}")
                continue
            if isinstance(outcome, Failure):
                lost[node] = str(outcome)
                continue
            for process, (ended, left) in zip(now[node], outcome, strict=True):
                pids[process.name] = ended
                if left:
                    where = f"{process.name} on {node}"
                    faults.append(f"{where}: pids {list(left)} do not end, even by KILL")
    for node, reason in lost.items():
        there = [p for p in waiting if p.node == node and p.name not in pids]
        faults.append(f"left on {node}: {_names(there)}; {reason}")
    return Ended(pids, tuple(faults))


def _names(processes: Iterable[Process]) -> str:
    return ", ".join(process.name for process in processes)


def _end(
    processes: list[Process],
    runner_for: RunnerFor,
    grace_s: float,
    started: Mapping[str, Started],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each: the pids that were ended, and those that are left."""
    try:
        runner = runner_for(processes[0].node)
        stopped = runner.stop_all(processes, grace_s, started)
        seen = runner.observe_all(processes, started)
    except OSError as exc:
        raise LaunchFailed(f"{exc.filename}: {exc.strerror}") from exc
    return [
        (done.ended, tuple(sorted({*done.left, *after.members})))
        for done, after in zip(stopped, seen, strict=True)
    ]
