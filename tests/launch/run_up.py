"""`vdisagg up` for a plan that a test has made: run_up.py PLAN_FILE STATE_DIRECTORY."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from vdisagg.errors import Error
from vdisagg.launch.local import LocalRunner
from vdisagg.launch.up import up
from vdisagg.plan.model import Plan
from vdisagg.view.errors import show_error
from vdisagg.view.progress import PlainProgress


def main(plan_file: Path, directory: Path) -> None:
    plan = msgspec.json.decode(plan_file.read_bytes(), type=Plan)
    report = PlainProgress(sys.stderr)
    try:
        up(plan, lambda node: LocalRunner(), state_directory=directory, report=report)
    except Error as error:
        show_error(error)
        sys.exit(error.exit_code)
    print("up")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
