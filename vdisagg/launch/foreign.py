"""Before a launch: does the cluster run already, under a record that is not here?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdisagg.errors import Failure
from vdisagg.launch.lookout import find_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdisagg.launch.runner import Found, RunnerFor
    from vdisagg.plan.model import Plan


def refuse_foreign(
    plan: Plan, runner_for: RunnerFor, *, now: Callable[[], float], tick: Callable[[], None]
) -> None:
    """Raises Failure where anything lives in the cluster's directories: another machine, another user's
    state or a lost record has launched it, and it is not ours to end. Names nodes, pids and ages. A node that
    can't be asked is passed over: the steps that follow name it, with all others that are not fit."""
    folders: dict[str, set[str]] = {}
    for process in plan.processes():
        folders.setdefault(process.node, set()).add(process.directory.rpartition("/")[0])
    found = find_all(runner_for, folders, tick=tick)
    lines = [
        f"  {node}: {_told(one, now())}"
        for node, ones in found.items()
        for one in (ones if isinstance(ones, list) else ())
        if one.living
    ]
    if lines:
        file = plan.topology_file
        raise Failure(
            "\n".join(
                (
                    f"cluster {plan.name} runs already, and its record is not here:",
                    *lines,
                    f"next: `vdisagg down {file} --find` ends it, whoever launched it; or give this one "
                    f"another `name:` in {file}",
                )
            )
        )


def _told(one: Found, now: float) -> str:
    age = "" if one.started_at is None else f", started {max(0.0, now - one.started_at):.0f} s ago"
    mark = one.mark
    by = "" if mark is None else f", launched from {mark.host} (record: {mark.state_directory})"
    return f"{one.name}, pid {one.living[0]}{age}{by}"
