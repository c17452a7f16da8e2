"""Takes a cluster down: ends what its record names, and nothing else; any number of times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vdisagg.cluster import record
from vdisagg.cluster.admin import SOCKET_NAME
from vdisagg.cluster.snapshot import DownResult
from vdisagg.errors import Failure
from vdisagg.launch.ending import end_processes
from vdisagg.launch.interrupt import Interrupt
from vdisagg.launch.sight import log_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vdisagg.launch.runner import Runner


def down(
    runner_for: Callable[[str], Runner],
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
        ended = end_processes(plan.processes(), runner_for, plan.timeouts.stop_s)
        if ended.faults:
            raise Failure(
                "\n".join(
                    (
                        f"cluster {name} is not down:",
                        *ended.faults,
                        f"next: look at these processes, then `vdisagg down --name {name}` again",
                    )
                )
            )
        record.remove(state_directory)
        (state_directory / SOCKET_NAME).unlink(missing_ok=True)  # a killed controller leaves it
        return DownResult(name, ran=True, ended=ended.pids, log_files=log_files(plan))
