"""Up and down where nothing more can be written: to their disks, or to the streams that tell how it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fakes.disk import FILLER, Disk
from vdisagg.cluster import record
from vdisagg.errors import Failure
from vdisagg.launch import errands

if TYPE_CHECKING:
    from launch.conftest import Cluster

RUN_UP = Path(__file__).with_name("run_up.py")
WAITS_FOR_GO = "rm -f ready; sleep 1000 & while [ ! -e go ]; do sleep 0.1; done; touch ready; wait"
LOADS_FOR_EVER = "rm -f ready; echo loading; sleep 1000 & wait"


@pytest.fixture
def on_disk(
    disk: Disk, make_cluster: Callable[[str], Cluster], monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """A cluster whose state and whose processes' directories are on the disk that can be filled."""
    monkeypatch.setenv("XDG_STATE_HOME", str(disk.path / "state"))
    cluster = make_cluster("demo")
    cluster.root = disk.path / "work"
    return cluster


def test_down_ends_everything_and_forgets_the_cluster(on_disk: Cluster, disk: Disk) -> None:
    on_disk.up()
    disk.fill()
    assert on_disk.down().ran
    assert on_disk.is_empty()
    assert record.read(on_disk.directory) is None


def test_up_says_what_cannot_be_written_and_leaves_nothing(on_disk: Cluster, disk: Disk) -> None:
    disk.fill()
    with pytest.raises(Failure, match=r"demo/cluster\.json: cannot be written: No space left"):
        on_disk.up()
    assert on_disk.is_empty()
    assert record.read(on_disk.directory) is None


def test_an_up_that_cannot_tell_its_record_that_it_is_up_leaves_nothing(
    on_disk: Cluster, disk: Disk, wait_until: Callable[..., None]
) -> None:
    on_disk.root = disk.path.with_name("elsewhere")  # the stand-ins are no good on a full disk
    on_disk.engines["d0"] = WAITS_FOR_GO
    with up_in_background(on_disk, stderr=subprocess.PIPE) as first:
        wait_until(lambda: len(recorded_processes(on_disk)) == 4)
        disk.fill()
        (Path(next(p.directory for p in on_disk.plan.processes() if p.name == "d0")) / "go").touch()
        _, said = first.communicate(timeout=30)
    assert first.returncode == 1
    assert "demo/cluster.json: cannot be written" in said
    assert on_disk.is_empty()
    assert record.read(on_disk.directory) is None


def test_a_file_for_a_node_that_cannot_be_written_is_named_and_leaves_no_half(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(OSError, match="No space left") as caught:
        errands.write(disk.path, {"cluster.json": "text"})
    assert caught.value.filename == str(disk.path / "cluster.json")
    assert [path.name for path in disk.path.iterdir()] == [FILLER]


def recorded_processes(cluster: Cluster) -> list[str]:
    """Those whose start is in the record."""
    recorded = record.read(cluster.directory)
    return [] if recorded is None else list(recorded.processes)


@contextmanager
def up_in_background(cluster: Cluster, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """An up in a process of its own, with these streams."""
    plan_file = cluster.directory / "plan-of-the-test.json"
    plan_file.write_bytes(msgspec.json.encode(cluster.plan))
    command = [sys.executable, str(RUN_UP), str(plan_file), str(cluster.directory)]
    streams = {"stdout": subprocess.DEVNULL, **streams}
    with subprocess.Popen(command, text=True, start_new_session=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def without_a_reader() -> int:
    """The end of a pipe to write to, whose other end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full() -> int:
    """What takes no byte."""
    return os.open("/dev/full", os.O_WRONLY)


@pytest.fixture(params=[full, without_a_reader])
def stream(request: pytest.FixtureRequest) -> Iterator[int]:
    """A descriptor that nothing can be written to."""
    descriptor: int = request.param()
    yield descriptor
    os.close(descriptor)


def test_up_finishes_where_its_progress_cannot_be_told(cluster: Cluster, stream: int) -> None:
    with up_in_background(cluster, stderr=stream) as first:
        first.wait(60)
    recorded = record.read(cluster.directory)
    assert recorded is not None
    assert recorded.phase == "up"
    assert all(cluster.pids().values())


def test_an_interrupted_up_undoes_where_that_cannot_be_told(
    cluster: Cluster, stream: int, wait_until: Callable[..., None]
) -> None:
    cluster.engines["d0"] = LOADS_FOR_EVER
    with up_in_background(cluster, stderr=stream) as first:
        wait_until(lambda: cluster.observe("front-end").state == "running")
        first.send_signal(signal.SIGINT)
        first.wait(30)
    assert cluster.is_empty()
    assert record.read(cluster.directory) is None
