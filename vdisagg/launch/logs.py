"""Finds the process whose log is asked for."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from vdisagg.cluster import record
from vdisagg.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from vdisagg.plan.model import Plan, Process


def find_process(state_directory: Path, name: str) -> tuple[Plan, Process]:
    """The recorded process of that name, and the plan that it belongs to.

    Raises UsageError that lists the valid names, or says that nothing is recorded.
    """
    recorded = record.read(state_directory)
    if recorded is None:
        raise UsageError(
            f"cluster {state_directory.name} is not recorded, so nothing of it runs; "
            "next: `vdisagg status` shows which clusters are"
        )
    if name in {instance.name for instance in recorded.plan.manual_instances()}:
        raise UsageError(f"{name} is started by hand: its log is where that was done")
    processes = {process.name: process for process in recorded.plan.processes()}
    if name not in processes:
        near = get_close_matches(name, processes, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"no process is named {name!r}; there are: {', '.join(processes)}{hint}")
    return recorded.plan, processes[name]
