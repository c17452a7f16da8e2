"""Processes of a benchmark: what CPU they use, by /proc, and how they are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(pid: str) -> list[str]:
    """Fields of /proc/PID/stat from the third on (see proc(5)); empty when it is gone."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def session_cpu_s(session: int) -> float:
    """User and system seconds so far of all living processes of a session, threads included."""
    ticks = 0
    for pid in (path.name for path in Path("/proc").iterdir() if path.name.isdigit()):
        fields = _stat(pid)
        if len(fields) > 12 and int(fields[3]) == session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def cpu_s(sessions: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds so far by name, and of this process as `client`."""
    used = {name: session_cpu_s(session) for name, session in sessions.items()}
    times = os.times()
    return {**used, "client": times.user + times.system}


def start(argv: Iterable[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, so that it can be ended with all its children."""
    with log.open("wb") as out:
        return subprocess.Popen(
            list(argv),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(processes: Iterable[subprocess.Popen[bytes]], *, grace_s: float = 20.0) -> None:
    """TERM to each one's group, KILL to the groups that are left after the grace time."""
    started = list(processes)
    for process in started:
        _signal_group(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in started:
        # The leader may be gone and its children not; as long as one lives, the group's id is theirs.
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
