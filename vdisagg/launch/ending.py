"""Ends processes in the right order, on all nodes, and reports everything that would not end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from vdisagg.errors import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vdisagg.launch.runner import Runner
    from vdisagg.plan.model import Kind, Process

ORDER: tuple[tuple[Kind, ...], ...] = (("front_end",), ("prefill", "decode"), ("controller",))
"""No new requests first; then the engines, all at once; who watches them goes last."""


class Ended(msgspec.Struct, frozen=True):
    """What came of ending some processes."""

    pids: dict[str, tuple[int, ...]]
    """Pids that were ended, by process."""
    faults: tuple[str, ...]
    """What is left, and why; empty when nothing is."""


def end_processes(
    processes: Iterable[Process], runner_for: Callable[[str], Runner], grace_s: float
) -> Ended:
    """TERM, grace, KILL for every process given and its group; returns once nothing is left, or
    says what is."""
    by_kind: dict[Kind, list[Process]] = {}
    for process in processes:
        by_kind.setdefault(process.kind, []).append(process)
    pids: dict[str, tuple[int, ...]] = {}
    faults: list[str] = []
    for kinds in ORDER:
        together = [process for kind in kinds for process in by_kind.get(kind, [])]
        if not together:
            continue
        with ThreadPoolExecutor(max_workers=len(together)) as pool:
            tried = pool.map(lambda process: _end(process, runner_for, grace_s), together)
            for process, (ended, fault) in zip(together, tried, strict=True):
                pids[process.name] = ended
                faults.extend([fault] if fault else [])
    return Ended(pids, tuple(faults))


def _end(
    process: Process, runner_for: Callable[[str], Runner], grace_s: float
) -> tuple[tuple[int, ...], str]:
    try:
        runner = runner_for(process.node)
        stopped = runner.stop(process, grace_s)
        seen = runner.observe(process)
    except Failure as exc:
        return (), f"{process.name} on {process.node}: {exc}"
    except OSError as exc:
        return (), f"{process.name} on {process.node}: {exc.filename}: {exc.strerror}"
    left = sorted({*stopped.left, *seen.members})
    fault = (
        f"{process.name} on {process.node}: pids {left} do not end, even by KILL" if left else ""
    )
    return stopped.ended, fault
