"""A process and all that descends from it: found through /proc, ended by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

Identity = tuple[int, str]
"""A pid, and the process's start time in clock ticks: a recycled pid is another process."""


def _stat(pid: int) -> list[str] | None:
    """Fields 3 and on of /proc/PID/stat; None for a process that is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields


def identity(pid: int) -> Identity | None:
    """The living process that has this pid now."""
    fields = _stat(pid)
    return None if fields is None else (pid, fields[19])


def _families() -> dict[int, list[Identity]]:
    """The children of every process, in whatever pid namespace they are."""
    children: dict[int, list[Identity]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append((int(entry.name), fields[19]))
    return children


def children(pid: int) -> list[int]:
    """Pids of its children."""
    return [child for child, _ in _families().get(pid, ())]


def descendants(pid: int) -> set[Identity]:
    """Children, their children, and so on."""
    families = _families()
    found: set[Identity] = set()
    waiting = [pid]
    while waiting:
        for child in families.get(waiting.pop(), ()):
            found.add(child)
            waiting.append(child[0])
    return found


def kill(pid: int) -> None:
    """KILL a process, which may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_tree(process: subprocess.Popen[Any], limit_s: float = 60.0) -> None:
    """KILL a child of ours and its descendants; returns when none lives.

    They are stopped first: one that forks while others are ended would leave a child that nobody knows.
    """
    known: set[Identity] = set()
    own = identity(process.pid)
    while found := (descendants(process.pid) | ({own} if own else set())) - known:
        for pid, _ in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        known |= found
    process.kill()
    for pid, _ in known:
        kill(pid)
    process.wait()
    deadline = time.monotonic() + limit_s
    while known := {one for one in known if identity(one[0]) == one}:
        assert time.monotonic() < deadline, f"these do not end: {sorted(known)}"
        time.sleep(0.01)
