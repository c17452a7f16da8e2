"""Takes a cluster down: ends what its record names, or what marks on its nodes say, and nothing else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vdisagg.cluster import record
from vdisagg.cluster.admin import SOCKET_NAME
from vdisagg.cluster.snapshot import DownResult
from vdisagg.errors import Failure
from vdisagg.launch import far_controller
from vdisagg.launch.ending import end_processes
from vdisagg.launch.interrupt import Interrupt
from vdisagg.launch.lookout import find_all
from vdisagg.launch.sight import log_files
from vdisagg.plan.model import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vdisagg.launch.runner import RunnerFor
    from vdisagg.plan.model import Plan


def down(
    runner_for: RunnerFor,
    *,
    state_directory: Path,
    say: Callable[[str], None],
    now: Callable[[], float] = time.time,
) -> DownResult:
    """End the cluster whose state is in `state_directory`, whatever has become of its processes.

    The record goes only once nothing is left; logs stay. A signal does not break it off half-way.
    Raises ClusterBusy, and Failure that names whatever would not end.
    """
    name = state_directory.name
    with (
        Interrupt(say) as interrupt,
        record.Lock(state_directory, f"vdisagg down --name {name}", clock=now),
    ):
        interrupt.undoing()
        recorded = record.read(state_directory)
        if recorded is None:
            return DownResult(name, ran=False, ended={}, log_files={})
        plan = recorded.plan
        ended = end_processes(
            plan.processes(), runner_for, plan.timeouts.stop_s, recorded.processes
        )
        _refuse_faults(name, ended.faults)
        _refuse_faults(name, far_controller.forget((plan.controller,), runner_for))
        not_ours = tuple(instance.name for instance in plan.manual_instances())
        _forget(state_directory)
        return DownResult(
            name, ran=True, ended=ended.pids, log_files=log_files(plan), not_ours=not_ours
        )


def down_found(
    plan: Plan,
    runner_for: RunnerFor,
    *,
    state_directory: Path,
    say: Callable[[str], None],
    now: Callable[[], float] = time.time,
) -> DownResult:
    """End whatever runs under the plan's name on its nodes, found by the marks that guards leave.

    For a run whose record is lost, on this machine or another, or unreadable. A signal breaks the search off,
    but not the ending. Raises ClusterBusy, Interrupted, and Failure that names every node that could not be
    searched and whatever would not end.
    """
    with (
        Interrupt(say) as interrupt,
        record.Lock(state_directory, f"vdisagg down --find {plan.topology_file}", clock=now),
    ):
        found, unsearched = _search(plan, runner_for, say, interrupt.check)
        interrupt.undoing()
        interrupt.check()  # one that came before that word is heeded
        ended = end_processes(found, runner_for, plan.timeouts.stop_s)
        _refuse_faults(plan.name, (*unsearched, *ended.faults))
        controllers = [process for process in found if process.kind == "controller"]
        _refuse_faults(plan.name, far_controller.forget(controllers, runner_for))
        _forget(state_directory)  # an unreadable record: what a readable one names was ended before
        there = {p.name: f"{p.directory}/{record.LOG_FILE}" for p in found if ended.pids[p.name]}
        pids = {name: ended.pids[name] for name in there}
        return DownResult(plan.name, ran=bool(there), ended=pids, log_files=there)


def _forget(state_directory: Path) -> None:
    record.remove(state_directory)
    (state_directory / SOCKET_NAME).unlink(missing_ok=True)  # a killed controller leaves it


def _search(
    plan: Plan, runner_for: RunnerFor, say: Callable[[str], None], tick: Callable[[], None]
) -> tuple[list[Process], list[str]]:
    """What there is of the cluster on the plan's nodes, and the nodes that could not be searched."""
    here = [node.name for node in plan.nodes if node.ssh is None]  # one machine, whatever its names
    folders: dict[str, dict[str, None]] = {}
    for node, folder in (
        *((node.name, f"{node.work_directory.rstrip('/')}/{plan.name}") for node in plan.nodes),
        *((process.node, process.directory.rpartition("/")[0]) for process in plan.processes()),
    ):
        folders.setdefault(here[0] if node in here else node, {})[folder] = None
    searched = find_all(runner_for, folders, tick=tick)
    processes: dict[tuple[str, str], Process] = {}
    kinds = {process.name: process.kind for process in plan.processes()}
    unsearched = []
    for node, outcome in searched.items():
        if isinstance(outcome, Failure):
            unsearched.append(f"not searched: {node}; {outcome}")
            continue
        names = set[str]()  # of one name there may be several: an earlier run had another work_dir
        for one in outcome:
            if one.living and one.mark is not None:
                by = f"{one.mark.host} (record: {one.mark.state_directory})"
                say(f"found on {node}: {one.name}, pids {list(one.living)}, launched from {by}")
            elif one.living:
                say(f"found on {node}: {one.name}, pids {list(one.living)}")
            processes[node, one.directory] = Process(
                name=f"{one.directory if one.name in names else one.name} on {node}",
                # Of unknown ones none has to be ended first or last.
                kind=one.kind or kinds.get(one.name, "prefill"),
                node=node,
                argv=(),
                env={},
                directory=one.directory,
            )
            names.add(one.name)
    return list(processes.values()), unsearched


def _refuse_faults(name: str, faults: Sequence[str]) -> None:
    if faults:
        raise Failure(
            "\n".join(
                (
                    f"cluster {name} is not down:",
                    *(f"  {fault}" for fault in faults),
                    "next: mend that, then the same command again: it goes on with what is left",
                )
            )
        )
