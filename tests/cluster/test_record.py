"""The cluster's record and lock."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.disk import small_disk
from vdisagg.cluster import record
from vdisagg.cluster.record import Lock, Record, Started
from vdisagg.errors import ClusterBusy, Failure
from vdisagg.plan.model import Address, FrontEnd, Heartbeat, Plan, Process, Timeouts

HOLD = """
import sys
from pathlib import Path
from vdisagg.cluster.record import Lock
with Lock(Path(sys.argv[1]), "vdisagg up demo.yaml", clock=lambda: 100.0):
    print("held", flush=True)
    sys.stdin.read()
"""


def a_record() -> Record:
    def process(name: str, kind: str) -> Process:
        return Process(name, kind, "here", ("true",), {"A": "1"}, f"/tmp/{name}")  # type: ignore[arg-type]

    front = FrontEnd(process("f", "front_end"), Address("h", 1), Address("h", 2), 1, "m")
    plan = Plan(
        "demo",
        "demo.yaml",
        "digest",
        {"name": "demo"},
        "m",
        "nixl",
        (),
        front,
        process("c", "controller"),
        Heartbeat(1.0, 3, 2),
        Timeouts(1.0, 1.0, 1.0),
    )
    started = Started(1, 2, "boot", 3, 4, "/tmp/c", 5.0)
    return Record(plan, 1.0, 42, "starting", {"c": started})


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return record.state_directory("demo")


def test_the_state_directory_is_for_its_owner_alone(directory: Path, tmp_path: Path) -> None:
    assert directory == tmp_path / "vdisagg" / "demo"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    assert stat.S_IMODE(record.state_directory("demo").stat().st_mode) == 0o700


def test_a_state_directory_that_cannot_be_made_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vdisagg").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(Failure, match=r"vdisagg/demo: cannot be made .*; next: set XDG_STATE_HOME"):
        record.state_directory("demo")


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_a_state_home_that_is_unset_or_relative_is_the_usual_one(value: str) -> None:
    expected = Path.home() / ".local" / "state" / "vdisagg"
    assert record.state_root({"XDG_STATE_HOME": value}) == expected


def test_what_is_written_is_read(directory: Path) -> None:
    record.write(directory, a_record())
    assert record.read(directory) == a_record()
    assert stat.S_IMODE((directory / record.RECORD_FILE).stat().st_mode) == 0o600
    assert [path.name for path in directory.iterdir()] == [record.RECORD_FILE]


def test_recorded_clusters_are_listed_and_removed_ones_are_not(directory: Path) -> None:
    assert record.recorded() == []
    record.write(directory, a_record())
    assert record.recorded() == ["demo"]
    record.remove(directory)
    record.remove(directory)
    assert record.recorded() == []


def test_no_record_is_none(directory: Path) -> None:
    assert record.read(directory) is None
    assert record.read(directory / "deeper") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "1"}'])
def test_an_unreadable_record_is_named_with_what_to_do(directory: Path, text: str) -> None:
    (directory / record.RECORD_FILE).write_text(text)
    with pytest.raises(Failure, match=r"cluster\.json: not a cluster record: .*; next: "):
        record.read(directory)


def test_a_record_of_a_newer_version_is_refused(directory: Path) -> None:
    (directory / record.RECORD_FILE).write_text(json.dumps({"format": 2, "new": True}))
    with pytest.raises(Failure, match="format 2 is newer than this vdisagg knows"):
        record.read(directory)


def test_a_record_that_cannot_be_written_is_a_failure_and_leaves_the_old_one(
    directory: Path,
) -> None:
    record.write(directory, a_record())
    (directory / f"{record.RECORD_FILE}.part").mkdir()
    with pytest.raises(Failure, match="cannot be written"):
        record.write(directory, a_record())
    assert record.read(directory) == a_record()


def test_d08_a_second_taker_hears_who_is_at_work_and_for_how_long(directory: Path) -> None:
    held = Lock(directory, "vdisagg up demo.yaml", clock=lambda: 100.0)
    second = Lock(directory, "vdisagg down", clock=lambda: 107.0)
    pid = os.getpid()
    with held, pytest.raises(ClusterBusy, match=rf"`vdisagg up demo.yaml` \(pid {pid}\).* 7 s"):
        second.__enter__()
    with second:
        pass


def test_who_holds_the_lock_can_be_asked_without_taking_it(directory: Path) -> None:
    assert record.holder(directory) is None
    with Lock(directory, "vdisagg up x", clock=lambda: 5.0):
        assert record.holder(directory) == record.Holder(os.getpid(), "vdisagg up x", 5.0)
    assert record.holder(directory) is None


def test_the_lock_is_free_after_its_holder_was_killed(directory: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ClusterBusy, match=f"pid {holder.pid}"):
            Lock(directory, "second").__enter__()
        holder.send_signal(signal.SIGKILL)
    with Lock(directory, "third"):
        pass


def test_started_processes_do_not_inherit_the_lock(directory: Path) -> None:
    with Lock(directory, "first"):
        child = subprocess.Popen(["sleep", "1000"], close_fds=False)
    try:
        with Lock(directory, "second"):
            pass
    finally:
        child.kill()
        child.wait()


def test_on_a_full_disk_the_lock_is_held_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk.path))
        directory = record.state_directory("demo")
        disk.fill()
        with Lock(directory, "first"):
            assert record.holder(directory) == record.UNKNOWN_HOLDER
            with pytest.raises(ClusterBusy, match="busy: another command has been at it; next"):
                Lock(directory, "second").__enter__()
        assert record.holder(directory) is None


def test_a_lock_that_cannot_be_made_is_named(directory: Path) -> None:
    (directory / record.LOCK_FILE).mkdir()
    with pytest.raises(Failure, match=rf"{directory}/lock: cannot be opened: Is a directory"):
        Lock(directory, "first").__enter__()
