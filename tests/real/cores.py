"""The engine cores of a running cluster: finding their processes, stopping one for a while."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from real.conftest import RealCluster
from real.processes import children_of, title_of
from vdisagg.cluster import record


def recorded(cluster: RealCluster) -> record.Record:
    """The cluster's record."""
    found = record.read(cluster.state)
    assert found is not None
    return found


def pids(cluster: RealCluster, process: str) -> tuple[int, int]:
    """A process that a guard has started, and the guard."""
    (planned,) = [p for p in recorded(cluster).plan.processes() if p.name == process]
    written = json.loads((Path(planned.directory) / record.PROCESS_FILE).read_text())
    return written["pid"], written["guard_pid"]


def core(cluster: RealCluster, instance: str) -> int:
    """The pid of an instance's engine core."""
    leader, _ = pids(cluster, instance)
    (found,) = [pid for pid in children_of(leader) if "VLLM::EngineCore" in title_of(pid)]
    return found


def kill(pid: int) -> None:
    """kill -9, and wait until nothing is left of it but its exit code, which may be nobody's to fetch."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _lives(pid):
        assert time.monotonic() < deadline, f"{pid} does not end"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    """A zombie with threads that have not ended yet still holds its ports."""
    entry = Path("/proc") / str(pid)
    try:
        ended = "State:\tZ" in (entry / "status").read_text()
        return not ended or len(list((entry / "task").iterdir())) > 1
    except OSError:
        return False


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP for as long as the block lasts."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
