"""The guard: one process with its group, its log, its exit code; and who it spares."""

from __future__ import annotations

import ast
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fakes import living
from fakes.disk import Disk
from vdisagg.cluster import record
from vdisagg.launch import guard, logfile, ports

TREE = "echo out; echo err >&2; sh -c 'sleep 1000 & wait' & sleep 1000 & wait"


class Guarded:
    """A directory and what is started in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self, *argv: str, ticket: str | None = None, **job: Any) -> dict[str, Any]:
        wanted = {
            "name": "p0",
            "argv": argv,
            "env": {},
            "cwd": "/",
            "grace_s": 0.3,
            "ticket": ticket or guard.issue_ticket(self.directory),
            **job,
        }
        command = [sys.executable, "-I", "-S", guard.__file__, "start", str(self.directory)]
        done = subprocess.run(command, input=json.dumps(wanted), capture_output=True, text=True)
        answer = done.stdout.partition(guard.BEGIN)[2].partition(guard.END)[0]
        found: dict[str, Any] = json.loads(answer)
        return found

    def observe(self) -> dict[str, Any]:
        return guard.observe(self.directory)

    def stop(self, grace_s: float = 0.3) -> dict[str, Any]:
        return guard.stop(self.directory, grace_s)

    def log(self, name: str = guard.LOG_FILE) -> str:
        return (self.directory / name).read_text()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path / "p0")
    yield made
    made.stop(0.1)


@pytest.fixture
def tree(guarded: Guarded, wait_until: Callable[..., None]) -> Guarded:
    """A leader with two children and a grandchild."""
    guarded.start("sh", "-c", TREE)
    wait_until(lambda: len(guarded.observe()["members"]) == 4)
    return guarded


def nothing_lives(guarded: Guarded, pids: list[int], is_alive: Callable[[int], bool]) -> bool:
    seen = guarded.observe()
    return not (seen["members"] or seen["guard_alive"] or any(map(is_alive, pids)))


def test_a_process_runs_in_a_session_of_its_own_with_both_streams_in_its_log(tree: Guarded) -> None:
    seen = tree.observe()
    assert seen["state"] == "running"
    assert os.getsid(seen["pid"]) == seen["pid"] != os.getsid(seen["guard_pid"])
    assert sorted(tree.log().split()) == ["err", "out"]


def test_nothing_that_the_guard_writes_is_for_others_to_read(tree: Guarded) -> None:
    assert stat.S_IMODE(tree.directory.stat().st_mode) == 0o700
    modes = living.modes(tree.directory)
    assert set(modes.values()) == {0o600}, modes


def test_the_process_itself_keeps_the_usual_umask_and_signal_mask(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    usual = os.umask(0o022)
    try:
        guarded.start("sh", "-c", "umask; grep SigBlk /proc/self/status")
    finally:
        os.umask(usual)
    wait_until(lambda: guarded.observe()["state"] == "exited")
    assert guarded.log().split() == ["0022", "SigBlk:", "0000000000000000"]


@pytest.mark.parametrize(
    ("script", "code", "number"), [("exit 7", 7, None), ("kill -SEGV $$", None, signal.SIGSEGV)]
)
def test_how_a_process_ended_is_known_afterwards(
    guarded: Guarded, wait_until: Callable[..., None], script: str, code: int, number: int
) -> None:
    guarded.start("sh", "-c", script)
    wait_until(lambda: guarded.observe()["state"] == "exited")
    seen = guarded.observe()
    assert (seen["code"], seen["signal"]) == (code, number)


def test_a_missing_executable_is_named_with_what_to_do(guarded: Guarded) -> None:
    answer = guarded.start("/nowhere/vllm")
    assert "p0: /nowhere/vllm: no such file" in answer["error"]
    assert "next:" in answer["error"]
    assert guarded.observe()["state"] == "never"


def test_a_file_that_is_not_executable_is_named(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    assert "not executable" in guarded.start(str(tmp_path / "vllm"))["error"]


def test_a_start_that_fails_does_not_look_like_the_last_one(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    guarded.start("true")
    wait_until(lambda: guarded.observe()["state"] == "exited")
    guarded.start("/nowhere/vllm")
    assert guarded.observe()["state"] == "never"


def test_the_last_log_is_kept_once(guarded: Guarded, wait_until: Callable[..., None]) -> None:
    for word in ("one", "two", "three"):
        guarded.start("echo", word)
        wait_until(lambda: guarded.observe()["state"] == "exited")
    assert (guarded.log(), guarded.log(guard.OLD_LOG_FILE)) == ("three\n", "two\n")


def test_stop_ends_the_whole_tree_and_its_guard(
    tree: Guarded, is_alive: Callable[[int], bool]
) -> None:
    members = tree.observe()["members"]
    done = tree.stop()
    assert sorted(done["ended"]) == sorted(members)
    assert done["left"] == []
    assert nothing_lives(tree, members, is_alive)
    assert tree.observe()["signal"] == signal.SIGTERM


def test_stop_may_be_repeated(tree: Guarded) -> None:
    tree.stop()
    assert tree.stop() == {"ended": [], "left": [], "guard_killed": False}


def test_stop_where_nothing_was_ever_started_does_nothing(tmp_path: Path) -> None:
    assert guard.stop(tmp_path / "never", 1.0)["ended"] == []
    assert not (tmp_path / "never").exists()


def test_term_to_the_guard_ends_the_whole_tree(
    tree: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    seen = tree.observe()
    os.kill(seen["guard_pid"], signal.SIGTERM)
    wait_until(lambda: nothing_lives(tree, seen["members"], is_alive))
    assert tree.observe()["signal"] == signal.SIGTERM


def test_d06_the_leader_killed_takes_its_tree_with_it(
    tree: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    seen = tree.observe()
    os.kill(seen["pid"], signal.SIGKILL)
    wait_until(lambda: nothing_lives(tree, seen["members"], is_alive))
    assert tree.observe()["signal"] == signal.SIGKILL


def test_d06_the_guard_killed_leaves_the_process_running_and_stop_ends_it(
    tree: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    before = tree.observe()
    os.kill(before["guard_pid"], signal.SIGKILL)
    wait_until(lambda: not tree.observe()["guard_alive"])
    assert tree.observe()["state"] == "running"
    tree.stop()
    assert nothing_lives(tree, before["members"], is_alive)


def test_d06_members_whose_leader_and_guard_were_killed_are_found_and_ended(
    tree: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    before = tree.observe()
    for pid in (before["guard_pid"], before["pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(before["pid"]))
    seen = tree.observe()
    assert seen["state"] == "gone"
    assert sorted(seen["members"]) == sorted(before["members"][1:])
    tree.stop()
    assert nothing_lives(tree, before["members"], is_alive)


def test_processes_that_rename_themselves_are_ended_all_the_same(
    guarded: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    guarded.start("bash", "-c", "(exec -a VLLM::EngineCore sleep 1000) & exec -a other sleep 1000")
    wait_until(lambda: len(guarded.observe()["members"]) == 2)
    members = guarded.observe()["members"]
    guarded.stop()
    assert nothing_lives(guarded, members, is_alive)


def test_stopped_processes_are_ended(tree: Guarded, is_alive: Callable[[int], bool]) -> None:
    seen = tree.observe()
    for pid in [*seen["members"], seen["guard_pid"]]:
        os.kill(pid, signal.SIGSTOP)
    assert tree.stop()["left"] == []
    assert nothing_lives(tree, seen["members"], is_alive)


def test_a_group_that_will_not_hear_of_term_is_killed_after_the_grace_time(
    guarded: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    guarded.start("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done")
    wait_until(lambda: guarded.log() == "deaf\n")
    members = guarded.observe()["members"]
    guarded.stop()
    assert nothing_lives(guarded, members, is_alive)
    assert guarded.observe()["signal"] == signal.SIGKILL


@pytest.mark.parametrize("change", [{"start_ticks": -1}, {"boot_id": "another boot"}])
def test_a_recycled_pid_is_spared(
    guarded: Guarded, is_alive: Callable[[int], bool], change: dict[str, Any]
) -> None:
    """A foreign process, leader of a session, that has the recorded pid but not its start time."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as foreign:
        try:
            own = guard.read_stat(foreign.pid)
            assert own is not None
            written = {
                "name": "p0",
                "pid": foreign.pid,
                "start_ticks": own["start_ticks"],
                "guard_pid": foreign.pid,
                "guard_start_ticks": own["start_ticks"],
                "boot_id": guard.boot_id(),
                "argv": ["sleep"],
                "at": 0.0,
            }
            guard.make_directory(guarded.directory)
            guard.write_json(guarded.directory / guard.PROCESS_FILE, written)
            assert guarded.observe()["members"] == [foreign.pid], "else this test proves nothing"

            if "start_ticks" in change:
                ticks = own["start_ticks"] + change["start_ticks"]
                written |= {"start_ticks": ticks, "guard_start_ticks": ticks}
            else:
                written |= change
            guard.write_json(guarded.directory / guard.PROCESS_FILE, written)
            assert guarded.observe()["state"] == "gone"
            assert guarded.stop()["ended"] == []
            assert is_alive(foreign.pid)
        finally:
            foreign.kill()


def test_a_start_that_comes_after_the_stop_starts_nothing(guarded: Guarded, tmp_path: Path) -> None:
    """The launcher was killed between sending the guard on its way and the guard's first step."""
    ticket = guard.issue_ticket(guarded.directory)
    guarded.stop()
    answer = guarded.start("touch", str(tmp_path / "ran"), ticket=ticket)
    assert "called off" in answer["error"]
    assert not (tmp_path / "ran").exists()


def test_d08_a_second_start_in_the_same_directory_is_refused(tree: Guarded) -> None:
    answer = tree.start("sleep", "1000")
    assert f"already runs in {tree.directory} as pid" in answer["error"]
    assert len(tree.observe()["members"]) == 4


def test_who_forks_and_ends_during_a_look_does_not_hide_its_child() -> None:
    looks = [[], [7]]
    assert guard.wait_until_none(lambda: looks.pop(0), 0.0, set()) == [7]


def test_values_of_the_environment_stand_in_no_file_and_no_command_line(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    secret = "s3cret-value"
    guarded.start("sh", "-c", "test -n $KEY && echo got it; sleep 1000", env={"KEY": secret})
    wait_until(lambda: guarded.log() == "got it\n")
    files = [*living.texts(guarded.directory).values()]
    lines = [
        Path(f"/proc/{pid}/cmdline").read_text()
        for pid in [*guarded.observe()["members"], guarded.observe()["guard_pid"]]
    ]
    assert not [text for text in files + lines if secret in text]


# Restarts

ALWAYS = {
    "policy": "on-failure",
    "limit": 1000,
    "backoff_s": 0.05,
    "stopped_s": 60.0,
    "reset_s": 600.0,
}


@pytest.mark.parametrize("script", ["exit 7", "exit 0", "kill -KILL $$"])
def test_a_process_that_ends_unasked_is_started_again_whatever_its_exit_code(
    guarded: Guarded, wait_until: Callable[..., None], script: str
) -> None:
    guarded.start(
        "sh", "-c", f"[ -e seen ] && exec sleep 1000; touch seen; {script}", **at(guarded)
    )
    wait_until(lambda: guarded.observe()["generation"] == 2)
    seen = guarded.observe()
    assert (seen["state"], seen["guard_alive"]) == ("running", True)
    assert len(seen["process"]["restarts"]) == 1


def at(guarded: Guarded, **restart: Any) -> dict[str, Any]:
    """A job that runs in its own directory, and is started again."""
    return {"cwd": str(guarded.directory), "restart": {**ALWAYS, **restart}}


def waits_to_restart(guarded: Guarded, generation: int) -> bool:
    """Whether the life of that number has ended, and its guard waits: after the first it does not."""
    seen = guarded.observe()
    return (seen["state"], seen["generation"]) == ("restarting", generation)


def test_the_first_restart_comes_at_once(guarded: Guarded, wait_until: Callable[..., None]) -> None:
    first = guarded.start("sleep", "1000", **at(guarded, backoff_s=3600.0))["started"]
    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: guarded.observe()["generation"] == 2)
    seen = guarded.observe()
    assert seen["pid"] != first["pid"]
    assert seen["signal"] == signal.SIGKILL
    assert seen["guard_pid"] == first["guard_pid"]


def test_the_second_restart_in_a_row_waits_and_says_until_when(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    guarded.start("sh", "-c", "echo life; exit 3", **at(guarded, backoff_s=1000.0))
    wait_until(lambda: waits_to_restart(guarded, 2))
    seen = guarded.observe()
    assert (seen["code"], seen["generation"], seen["members"]) == (3, 2, [])
    assert 990 < seen["restart_at"] - seen["ended_at"] < 1010


@pytest.mark.parametrize(
    ("in_a_row", "backoff_s", "delay_s"),
    [(0, 1.0, 0.0), (1, 1.0, 1.0), (2, 1.0, 2.0), (4, 1.0, 8.0), (9, 1.0, 60.0), (3, 100.0, 100.0)],
)
def test_the_wait_doubles_up_to_a_minute(in_a_row: int, backoff_s: float, delay_s: float) -> None:
    assert guard.restart_delay_s({**ALWAYS, "backoff_s": backoff_s}, in_a_row) == delay_s


@pytest.mark.parametrize("changed", [{"policy": "never"}, {"limit": 2}])
def test_no_restart_where_there_is_to_be_none(changed: dict[str, Any]) -> None:
    assert guard.restart_delay_s({**ALWAYS, **changed}, 2) is None


def test_a_guard_gives_up_after_the_limit_in_a_row(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    guarded.start("sh", "-c", "echo x >> lives; exit 3", **at(guarded, limit=2))
    wait_until(lambda: guarded.observe()["gave_up"] and not guarded.observe()["guard_alive"])
    seen = guarded.observe()
    assert (seen["state"], seen["code"], seen["restart_at"]) == ("exited", 3, None)
    assert (guarded.directory / "lives").read_text() == "x\n" * 3


def test_restarts_in_a_row_are_forgotten_once_it_has_lived(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    guarded.start("true", **at(guarded, limit=1, reset_s=0.0, backoff_s=1000.0))
    wait_until(lambda: guarded.observe()["generation"] > 4)


def test_the_log_of_the_death_is_kept(guarded: Guarded, wait_until: Callable[..., None]) -> None:
    script = "[ -e seen ] && echo second && exec sleep 1000; touch seen; echo last words; exit 1"
    guarded.start("sh", "-c", script, **at(guarded))
    wait_until(lambda: guarded.observe()["generation"] == 2 and guarded.log() == "second\n")
    assert guarded.log(guard.OLD_LOG_FILE) == "last words\n"


def test_what_is_left_of_the_group_ends_before_the_restart(
    guarded: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    guarded.start("sh", "-c", TREE, **at(guarded))
    wait_until(lambda: len(guarded.observe()["members"]) == 4)
    first = guarded.observe()
    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: guarded.observe()["generation"] == 2)
    assert not [pid for pid in first["members"] if is_alive(pid)]
    wait_until(lambda: len(guarded.observe()["members"]) == 4)


@pytest.fixture
def cramped(disk: Disk) -> Iterator[Guarded]:
    """A directory on a disk that can be filled. To be cleaned up before the disk goes."""
    made = Guarded(disk.path / "p0")
    yield made
    made.stop(0.1)


def test_on_a_full_disk_a_process_is_started_again_with_its_group_ended_and_its_end_told(
    cramped: Guarded, disk: Disk, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    cramped.start("sh", "-c", TREE, restart=ALWAYS)
    wait_until(lambda: len(cramped.observe()["members"]) == 4)
    first = cramped.observe()
    disk.fill()
    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: cramped.observe()["generation"] == 2)
    assert not [pid for pid in first["members"] if is_alive(pid)]
    seen = cramped.observe()
    assert (seen["state"], seen["signal"]) == ("running", signal.SIGKILL)
    assert guard.end_of(cramped.directory, first["process"]) is not None


def test_on_a_full_disk_stop_leaves_nothing_and_how_it_ended_is_known(
    cramped: Guarded, disk: Disk, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    cramped.start("sh", "-c", TREE, restart=ALWAYS)
    wait_until(lambda: len(cramped.observe()["members"]) == 4)
    members = cramped.observe()["members"]
    disk.fill()
    assert sorted(cramped.stop()["ended"]) == sorted(members)
    assert nothing_lives(cramped, members, is_alive)
    assert cramped.observe()["signal"] == signal.SIGTERM


def test_a_guard_whose_room_was_taken_ends_the_group_and_starts_it_again_once_there_is_some(
    cramped: Guarded, disk: Disk, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    cramped.start("sh", "-c", TREE, restart=ALWAYS)
    wait_until(lambda: len(cramped.observe()["members"]) == 4)
    first = cramped.observe()
    for name in (guard.EXIT_FILE, guard.PROCESS_FILE):
        guard.part_of(cramped.directory / name).unlink()
    disk.fill()
    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, first["members"])))
    assert cramped.observe()["guard_alive"]
    disk.empty()
    wait_until(lambda: cramped.observe()["generation"] == 2)
    wait_until(lambda: len(cramped.observe()["members"]) == 4)


def test_a_start_on_a_full_disk_names_what_could_not_be_written(
    cramped: Guarded, disk: Disk
) -> None:
    ticket = guard.issue_ticket(cramped.directory)
    disk.fill()
    answer = cramped.start("sleep", "1000", ticket=ticket)
    assert f"{cramped.directory / guard.PROCESS_FILE}: No space left" in answer["error"]
    assert cramped.observe()["state"] == "never"


def test_stop_of_a_process_that_may_be_restarted_leaves_nothing(
    guarded: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    guarded.start("sh", "-c", TREE, **at(guarded))
    wait_until(lambda: len(guarded.observe()["members"]) == 4)
    members = guarded.observe()["members"]
    done = guarded.stop()
    assert (done["left"], done["guard_killed"]) == ([], False)
    assert nothing_lives(guarded, members, is_alive)
    seen = guarded.observe()
    assert (seen["state"], seen["signal"], seen["gave_up"]) == ("exited", signal.SIGTERM, False)


def test_stop_while_the_guard_waits_to_restart_ends_the_guard(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    guarded.start("false", **at(guarded, backoff_s=1000.0))
    wait_until(lambda: waits_to_restart(guarded, 2))
    done = guarded.stop()
    assert done == {"ended": [], "left": [], "guard_killed": False}
    seen = guarded.observe()
    assert (seen["state"], seen["restart_at"], seen["guard_alive"]) == ("exited", None, False)


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_stop_at_any_moment_of_a_crash_loop_leaves_nothing(
    guarded: Guarded, wait_until: Callable[..., None], delay_s: float
) -> None:
    guarded.start("sh", "-c", "sleep 0.03; exit 1", **at(guarded, backoff_s=0.01, reset_s=0.0))
    wait_until(lambda: guarded.observe()["generation"] > 2)
    time.sleep(delay_s)  # the scenario itself: wherever it has got to by then
    guarded.stop()
    seen = guarded.observe()
    assert not seen["members"]
    assert not seen["guard_alive"]
    assert guarded.observe()["process"] == seen["process"]


def test_term_to_the_guard_ends_a_process_that_may_be_restarted(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    first = guarded.start("sleep", "1000", **at(guarded))["started"]
    os.kill(first["guard_pid"], signal.SIGTERM)
    wait_until(lambda: not guarded.observe()["guard_alive"])
    seen = guarded.observe()
    assert (seen["state"], seen["generation"], seen["gave_up"]) == ("exited", 1, False)


def test_a_start_elsewhere_takes_the_place_of_a_guard_that_waits(
    guarded: Guarded, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    """Whoever launches has lost the record of the last run, and has stopped nothing."""
    program = guarded.directory / "program"
    guard.make_directory(guarded.directory)
    program.write_text("#!/bin/sh\nrm program; exit 1\n")  # so that it never lives again
    program.chmod(0o700)
    first = guarded.start(str(program), **at(guarded))["started"]
    wait_until(lambda: guarded.observe()["end_reason"])
    second = guarded.start("sleep", "1000")["started"]
    wait_until(lambda: not is_alive(first["guard_pid"]))
    assert guarded.observe()["pid"] == second["pid"]
    assert guarded.observe()["state"] == "running"


def test_a_second_start_that_is_refused_costs_the_first_no_restart(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    first = guarded.start("sleep", "1000", **at(guarded))["started"]
    assert "already runs" in guarded.start("sleep", "1000")["error"]
    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: guarded.observe()["generation"] == 2)


def test_a_restart_that_cannot_be_made_is_told_and_tried_again(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    program = guarded.directory / "program"
    guard.make_directory(guarded.directory)
    program.write_text("#!/bin/sh\nrm program; exit 1\n")
    program.chmod(0o700)
    guarded.start(str(program), **at(guarded))
    wait_until(lambda: "no such file" in guarded.observe()["end_reason"])
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o700)
    wait_until(lambda: guarded.observe()["state"] == "running")
    assert guarded.observe()["generation"] == 2


def test_a_stopped_member_is_seen(tree: Guarded, wait_until: Callable[..., None]) -> None:
    assert not tree.observe()["stopped"]
    os.kill(tree.observe()["members"][-1], signal.SIGSTOP)
    wait_until(lambda: tree.observe()["stopped"])
    os.kill(tree.observe()["members"][-1], signal.SIGCONT)
    wait_until(lambda: not tree.observe()["stopped"])


@pytest.mark.parametrize("which", [0, -1])
def test_a_group_with_a_member_that_stays_stopped_is_killed_and_started_again(
    guarded: Guarded, wait_until: Callable[..., None], which: int
) -> None:
    guarded.start("sh", "-c", TREE, **at(guarded, stopped_s=0.5))
    wait_until(lambda: len(guarded.observe()["members"]) == 4)
    first = guarded.observe()
    os.kill(first["members"][which], signal.SIGSTOP)
    wait_until(lambda: guarded.observe()["generation"] == 2)
    seen = guarded.observe()
    assert seen["signal"] == signal.SIGKILL
    assert seen["end_reason"] == "was stopped for 0.5 s, and killed"
    assert not set(first["members"]) & set(seen["members"])


def test_how_long_members_have_been_stopped_is_counted_from_when_that_was_seen(
    tree: Guarded, wait_until: Callable[..., None]
) -> None:
    process = tree.observe()["process"]
    stops = guard.Stops(process["pid"], process["start_ticks"])
    member = tree.observe()["members"][-1]
    assert stops.longest_s(100.0) == 0.0
    os.kill(member, signal.SIGSTOP)
    wait_until(lambda: tree.observe()["stopped"])
    assert [stops.longest_s(now) for now in (101.0, 102.0, 105.0)] == [0.0, 1.0, 4.0]
    os.kill(member, signal.SIGCONT)
    wait_until(lambda: not tree.observe()["stopped"])
    assert stops.longest_s(106.0) == 0.0
    os.kill(member, signal.SIGSTOP)
    wait_until(lambda: tree.observe()["stopped"])
    assert [stops.longest_s(now) for now in (107.0, 109.0)] == [0.0, 2.0]


def test_a_stopped_process_is_left_alone_where_nothing_is_restarted() -> None:
    assert guard.stopped_limit_s({**ALWAYS, "policy": "never"}) is None


def test_values_of_the_environment_come_back_with_a_restart_and_stand_in_no_file(
    guarded: Guarded, wait_until: Callable[..., None]
) -> None:
    script = 'echo "$KEY" | wc -c; [ -e seen ] && exec sleep 1000; touch seen; exit 1'
    guarded.start("sh", "-c", script, env={"KEY": "s3cret-value"}, **at(guarded))
    wait_until(lambda: guarded.observe()["generation"] == 2 and guarded.log() == "13\n")
    assert not [p for p, text in living.texts(guarded.directory).items() if "s3cret-value" in text]


def test_the_record_repeats_the_guards_file_names() -> None:
    for name in ("PROCESS_FILE", "EXIT_FILE", "LOG_FILE", "OLD_LOG_FILE"):
        assert getattr(guard, name) == getattr(record, name)
    assert (logfile.LOG_FILE, logfile.OLD_LOG_FILE) == (record.LOG_FILE, record.OLD_LOG_FILE)
    assert guard.SWITCHES_DIRECTORY == record.SWITCHES_DIRECTORY


@pytest.mark.parametrize("module", [guard, logfile, ports], ids=lambda module: module.__name__)
def test_what_is_copied_to_nodes_runs_on_any_of_them(module: ModuleType) -> None:
    """Each file is there alone: Python 3.8's grammar, and nothing but the standard library."""
    tree = ast.parse(Path(module.__file__ or "").read_text(), feature_version=(3, 8))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [a.name for a in node.names]
        )
    }
    assert imported <= sys.stdlib_module_names
