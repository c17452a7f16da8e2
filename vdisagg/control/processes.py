"""What guards on this machine leave behind: a file at each start of a process, one at each end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vdisagg.cluster.record import EXIT_FILE, PROCESS_FILE
from vdisagg.plan.model import Plan, Process


class ProcessWatch:
    """The process directories of engines and front end on this machine, looked at on demand.

    Of what is on other nodes the controller hears on its sockets alone. What runs when the first look is
    made counts as started then. Each process's news come in order: its start, its end, its next start.

    `since`: Unix time at which this run of the cluster began. What was written before is the last
    run's, not yet cleared away.
    """

    def __init__(self, plan: Plan, *, since: float) -> None:
        machine = {node.name: node.ssh for node in plan.nodes}
        here = machine.get(plan.controller.node)

        def watched(process: Process) -> bool:
            return machine.get(process.node) == here

        self._instances = {
            i.name: _Directory(i.process, since) for i in plan.instances if watched(i.process)
        }
        front_end = plan.front_end.process
        self._front_end = _Directory(front_end, since) if watched(front_end) else None

    def started(self) -> list[str]:
        """Instances whose guard has started them since the last call, or started them again."""
        return [name for name, directory in self._instances.items() if directory.started()]

    def ended(self) -> list[tuple[str, str]]:
        """Instances whose process has ended since the last call, how, and whether it is started again."""
        found = ((name, directory.ended()) for name, directory in self._instances.items())
        return [(name, how) for name, how in found if how is not None]

    def front_started(self) -> bool:
        """Whether the front end's guard has started it since the last call, or started it again."""
        return self._front_end is not None and self._front_end.started()

    def front_ended(self) -> str | None:
        """How the front end's process has ended, if it has since the last call."""
        return None if self._front_end is None else self._front_end.ended()


class _Directory:
    """One process's files. An end is told only of a process whose start has been told: the last end's
    file stays there while the next process runs."""

    def __init__(self, process: Process, since: float) -> None:
        directory = Path(process.directory).expanduser()
        self._process = _File(directory / PROCESS_FILE, since)
        self._exit = _File(directory / EXIT_FILE, since)
        self._running: tuple[int, int] | None = None
        """Pid and start time of the process whose start has been told, and whose end has not."""
        self._last: tuple[int, int] | None = None

    def started(self) -> bool:
        written = self._process.read()
        if written is None or self._running is not None or _key(written) == self._last:
            return False
        self._running = self._last = _key(written)
        return True

    def ended(self) -> str | None:
        if self._running is None:
            return None
        ended = self._exit.read()
        if ended is not None and _key(ended) == self._running:
            self._running = None
            return how_it_ended(ended)
        written = self._process.read()
        if written is not None and _key(written) != self._running:
            self._running = None
            return "its process was replaced by another"  # and how it ended is overwritten
        return None


class _File:
    """A file that is always replaced whole: read again only when another one is there."""

    def __init__(self, path: Path, since: float) -> None:
        self._path = path
        self._since = since
        self._seen: tuple[int, int, int] | None = None
        self._value: dict[str, Any] | None = None

    def read(self) -> dict[str, Any] | None:
        """What it says, if it is of this run; None where there is none."""
        try:
            status = os.stat(self._path)  # noqa: PTH116  # four times a second for each: no Path
        except OSError:
            self._seen = self._value = None
            return None
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            self._value = self._read()
            self._seen = seen
        return self._value

    def _read(self) -> dict[str, Any] | None:
        try:
            written = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        return written if written["at"] >= self._since else None


def _key(written: dict[str, Any]) -> tuple[int, int]:
    return written["pid"], written["start_ticks"]


def how_it_ended(ended: dict[str, Any]) -> str:
    """What a guard's exit file says, in words."""
    if ended["signal"] is not None:
        how = f"its process was ended by signal {ended['signal']}"
    else:
        how = f"its process ended with exit code {ended['code']}"
    if ended.get("reason"):
        how += f" ({ended['reason']})"
    if ended.get("gave_up"):
        return f"{how}, and its guard gave up"
    if ended.get("restart_at") is None:
        return how
    delay_s = ended["restart_at"] - ended["at"]
    return f"{how}; it is started again {f'in {delay_s:.0f} s' if delay_s >= 0.5 else 'at once'}"
