"""A controller whose log takes no more."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.cluster import make_plan
from fakes.engine import FakeEngine, KvStore
from vdisagg.cluster import admin, record
from vdisagg.errors import ControllerGone

LIMIT_S = 60.0


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One in a process of its own, of one prefill and one decode engine that nobody has started."""
    plan = make_plan(tmp_path, 1, 1, interval_s=3600.0)
    record.write(tmp_path, record.Record(plan, 1.0, 1, "up", {}))
    command = [sys.executable, "-m", "vdisagg.control", str(tmp_path)]
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(command, stdout=full, stderr=full) as process,
    ):
        yield process
        process.kill()


def test_a_controller_serves_on_where_its_log_stands_on_a_full_disk(
    controller: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    recorded = record.read(tmp_path)
    assert recorded is not None
    p0 = recorded.plan.instances[0]
    engine = FakeEngine(p0.handshake.zmq, KvStore(), name="p0")
    deadline = time.monotonic() + LIMIT_S
    while "ready" not in told_of_p0(tmp_path):
        assert controller.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    engine.kill()
    assert controller.poll() is None


def told_of_p0(directory: Path) -> str:
    """The last event of the engine; nothing before there is one."""
    try:
        events = admin.ask(directory, admin.Events, "events").events
    except ControllerGone:
        return ""
    return next((event.what for event in reversed(events) if event.subject == "p0"), "")
