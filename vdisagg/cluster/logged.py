"""Lines that our own long-running processes write into their logs, which guards put on stdout."""

from __future__ import annotations

import contextlib
import time


def log_line(text: str, *, at: float) -> None:
    """One line, with the local time before it. `at`: Unix time.

    On a full disk it is lost, and nothing else is: who serves must not end of that.
    """
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    with contextlib.suppress(OSError):
        print(f"{stamp} {text}", flush=True)
