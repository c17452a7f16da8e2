"""What guards on this machine leave behind: a file when a process has started, one when it has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vdisagg.cluster.record import EXIT_FILE, PROCESS_FILE
from vdisagg.plan.model import Plan


class ProcessWatch:
    """The process directories of instances on this machine, looked at on demand.

    Of other nodes' instances the controller hears on their sockets alone.

    `since`: Unix time at which this run of the cluster began. What was written before is the last
    run's, not yet cleared away.
    """

    def __init__(self, plan: Plan, *, since: float) -> None:
        machine = {node.name: node.ssh for node in plan.nodes}
        here = machine.get(plan.controller.node)
        self._directories = {
            i.name: Path(i.process.directory).expanduser()
            for i in plan.instances
            if machine.get(i.process.node) == here
        }
        self._since = since
        self._waiting = set(self._directories)

    def started(self) -> list[str]:
        """Instances whose guard has started them since the last call."""
        found = [n for n in self._waiting if self._read(self._directories[n] / PROCESS_FILE)]
        self._waiting.difference_update(found)
        return found

    def ended(self) -> list[tuple[str, str]]:
        """Instances whose process has ended, and how."""
        found = ((name, self._read(d / EXIT_FILE)) for name, d in self._directories.items())
        return [(name, how_it_ended(ended)) for name, ended in found if ended]

    def _read(self, path: Path) -> dict[str, Any] | None:
        """What a file of this run says; None where there is none."""
        try:
            written = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return written if written["at"] >= self._since else None


def how_it_ended(ended: dict[str, Any]) -> str:
    """What a guard's exit file says, in words."""
    if ended["signal"] is not None:
        return f"its process was ended by signal {ended['signal']}"
    return f"its process ended with exit code {ended['code']}"
