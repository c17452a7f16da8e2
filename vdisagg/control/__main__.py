"""`python -m vdisagg.control STATE_DIRECTORY`: run the controller of the cluster recorded there."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

from vdisagg.cluster import record
from vdisagg.control.controller import Controller
from vdisagg.errors import Error


def main() -> int:
    """Returns the exit code."""
    directory = Path(sys.argv[1])
    try:
        recorded = record.read(directory)
        if recorded is None:
            print(f"{directory}: no cluster is recorded there", file=sys.stderr)
            return 1
        controller = Controller(
            recorded.plan, directory, rng=random.Random(), since=recorded.created
        )
    except Error as exc:
        print(exc, file=sys.stderr)
        return exc.exit_code
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: controller.stop())
    controller.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
