"""What guards on this machine leave behind: a file when a process has started, one when it has ended."""

from __future__ import annotations

import json
from pathlib import Path

from vdisagg.cluster.record import EXIT_FILE, PROCESS_FILE
from vdisagg.plan.model import Plan


class ProcessWatch:
    """The instances' process directories, looked at on demand."""

    def __init__(self, plan: Plan) -> None:
        self._directories = {i.name: Path(i.process.directory) for i in plan.instances}

    def started(self) -> list[str]:
        """Instances whose guard has started them."""
        return [n for n, d in self._directories.items() if (d / PROCESS_FILE).exists()]

    def ended(self) -> list[tuple[str, str]]:
        """Instances whose process has ended, and how."""
        return [
            (name, exit_reason(directory / EXIT_FILE))
            for name, directory in self._directories.items()
            if (directory / EXIT_FILE).exists()
        ]


def exit_reason(path: Path) -> str:
    """What a guard's exit file says, in words."""
    try:
        exit_ = json.loads(path.read_text())
    except (OSError, ValueError):
        return "its process has ended"
    if exit_.get("signal") is not None:
        return f"its process was ended by signal {exit_['signal']}"
    return f"its process ended with exit code {exit_.get('code')}"
