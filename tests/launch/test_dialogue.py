"""One interpreter on a node answers all questions, and each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fakes.node import FakeConnection
from vdisagg.errors import Failure, Unreachable
from vdisagg.launch import deputy, interfaces, pythons
from vdisagg.launch.dialogue import Dialogue, NoPython

PROBE = """\
import os, sys, time
def main(words):
    if words[0] == "pids":
        print(os.getpid(), os.getppid())
    elif words[0] == "echo":
        sys.stdout.write(sys.stdin.read() + words[1])
        sys.stderr.write("an error")
        sys.exit(int(words[2]))
    elif words[0] == "raise":
        raise KeyError("lost")
    elif words[0] == "kill":
        os.kill(os.getpid(), 9)
    elif words[0] == "held":
        print(sorted(int(name) for name in os.listdir("/proc/self/fd")))
    elif words[0] == "wait":
        while not os.path.exists(words[1]):
            time.sleep(0.01)
"""


@pytest.fixture
def probe(tmp_path: Path) -> ModuleType:
    """A module that is on no node."""
    module = ModuleType("vdisagg.launch.probe")
    module.__file__ = str(tmp_path / "probe.py")
    Path(module.__file__).write_text(PROBE)
    return module


@pytest.fixture
def connection(tmp_path: Path) -> FakeConnection:
    return FakeConnection(tmp_path / "home")


@pytest.fixture
def dialogue(connection: FakeConnection) -> Iterator[Dialogue]:
    with contextlib.closing(Dialogue(connection, "n1", (sys.executable,))) as made:
        yield made


def pids(dialogue: Dialogue, probe: ModuleType) -> tuple[int, int]:
    """Of a step, and of the deputy."""
    own, parent = dialogue.run(probe, "pids", limit_s=20.0).stdout.split()
    return int(own), int(parent)


def children_of(deputy_pid: int) -> list[int]:
    """The steps that it has begun and not yet answered."""
    children = Path(f"/proc/{deputy_pid}/task/{deputy_pid}/children")
    return list(map(int, children.read_text().split()))


def test_a_step_has_words_and_stdin_and_its_outputs_and_code_come_back(
    dialogue: Dialogue, probe: ModuleType
) -> None:
    done = dialogue.run(probe, "echo", "\N{RIGHTWARDS ARROW}", "7", stdin="p0 ", limit_s=20.0)
    assert (done.code, done.stdout, done.stderr) == (7, "p0 \N{RIGHTWARDS ARROW}", "an error")


def test_steps_are_processes_of_their_own_of_one_deputy(
    dialogue: Dialogue, probe: ModuleType, connection: FakeConnection
) -> None:
    one, other = pids(dialogue, probe), pids(dialogue, probe)
    assert one[1] == other[1]
    assert one[0] != other[0]
    assert len(connection.ran) == 1


def test_a_step_that_fails_is_told_and_the_next_one_answers(
    dialogue: Dialogue, probe: ModuleType
) -> None:
    done = dialogue.run(probe, "raise", limit_s=20.0)
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'lost'"
    assert dialogue.run(probe, "kill", limit_s=20.0).code == -signal.SIGKILL
    assert pids(dialogue, probe)


def test_a_step_that_hangs_holds_up_no_other(
    dialogue: Dialogue, probe: ModuleType, tmp_path: Path
) -> None:
    codes: list[int] = []

    def wait() -> None:
        codes.append(dialogue.run(probe, "wait", str(tmp_path / "go"), limit_s=60.0).code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    for _ in range(5):
        assert pids(dialogue, probe)
    assert codes == []
    (tmp_path / "go").touch()
    waiting.join(20)
    assert codes == [0]


def test_a_step_holds_nothing_of_others(
    dialogue: Dialogue, probe: ModuleType, tmp_path: Path
) -> None:
    waiting = threading.Thread(
        target=lambda: dialogue.run(probe, "wait", str(tmp_path / "go"), limit_s=60.0)
    )
    waiting.start()
    held = json.loads(dialogue.run(probe, "held", limit_s=20.0).stdout)
    assert held == [0, 1, 2, 3]  # 3: what lists them
    (tmp_path / "go").touch()
    waiting.join(20)


def test_d15_a_step_that_is_late_is_given_up_and_others_are_answered_all_the_same(
    dialogue: Dialogue, probe: ModuleType, tmp_path: Path
) -> None:
    go, codes = str(tmp_path / "go"), []

    def wait() -> None:
        codes.append(dialogue.run(probe, "wait", go, limit_s=60.0).code)

    _, deputy_pid = pids(dialogue, probe)
    waiting = threading.Thread(target=wait)
    waiting.start()
    with pytest.raises(
        Unreachable, match=r"^n1: `probe\.py wait .*` did not end within 0\.2 s; next: "
    ):
        dialogue.run(probe, "wait", go, limit_s=0.2)
    assert pids(dialogue, probe)[1] != deputy_pid
    Path(go).touch()
    waiting.join(20)
    assert codes == [0]


def test_when_the_deputy_is_killed_all_who_wait_hear_of_it_and_the_next_is_answered(
    dialogue: Dialogue, probe: ModuleType, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    _, deputy_pid = pids(dialogue, probe)
    failed: list[str] = []

    def wait() -> None:
        try:
            dialogue.run(probe, "wait", str(tmp_path / "go"), limit_s=60.0)
        except Failure as exc:
            failed.append(str(exc))

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(children_of(deputy_pid)) == 3)
    os.kill(deputy_pid, signal.SIGKILL)
    for thread in waiting:
        thread.join(20)
    (tmp_path / "go").touch()
    assert len(failed) == 3
    assert {one.split(";")[0][:40] for one in failed} == {
        "n1: what does our work there was ended (sh"[:40]
    }
    assert pids(dialogue, probe)[1] != deputy_pid


def test_the_deputy_ends_when_it_is_let_go(
    dialogue: Dialogue,
    probe: ModuleType,
    wait_until: Callable[..., None],
    is_alive: Callable[[int], bool],
) -> None:
    _, deputy_pid = pids(dialogue, probe)
    dialogue.close()
    wait_until(lambda: not is_alive(deputy_pid))


def test_a_deputy_that_was_ended_while_nobody_asked_is_missed_by_nobody(
    dialogue: Dialogue, probe: ModuleType, wait_until: Callable[..., None]
) -> None:
    _, deputy_pid = pids(dialogue, probe)
    os.kill(deputy_pid, signal.SIGKILL)
    wait_until(lambda: "deputy on n1" not in {thread.name for thread in threading.enumerate()})
    assert pids(dialogue, probe)[1] != deputy_pid


def test_a_deputy_that_hears_nothing_for_long_ends_by_itself() -> None:
    words = (sys.executable, deputy.__file__, "0.05")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.wait(20) == 0


def test_it_is_listed_under_what_it_does(
    dialogue: Dialogue, probe: ModuleType, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    def shown(pid: int) -> str:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()

    _, deputy_pid = pids(dialogue, probe)
    assert shown(deputy_pid) == "vdisagg deputy.py"
    go = str(tmp_path / "go")
    waiting = threading.Thread(target=lambda: dialogue.run(probe, "wait", go, limit_s=60.0))
    waiting.start()
    wait_until(
        lambda: [shown(pid) for pid in children_of(deputy_pid)] == [f"vdisagg probe.py wait {go}"]
    )
    Path(go).touch()
    waiting.join(20)


def test_a_connection_that_is_cut_is_said_once_it_is_used(
    dialogue: Dialogue, probe: ModuleType, connection: FakeConnection
) -> None:
    pids(dialogue, probe)
    connection.cut = True
    with pytest.raises(Unreachable):
        pids(dialogue, probe)
    connection.cut = False
    assert pids(dialogue, probe)


def test_the_first_python_that_is_fit_answers(connection: FakeConnection) -> None:
    old = connection.home / "old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.6.8 && exit\nexit 9\n')
    old.chmod(0o755)
    (connection.home / "my py").symlink_to("/usr/bin/python3")
    tried = ("/no/such/python", str(old), "~/my py")
    with contextlib.closing(Dialogue(connection, "n1", tried)) as dialogue:
        done = dialogue.run(interfaces, limit_s=20.0)
        assert json.loads(done.stdout)["interfaces"]["lo"][0] == "127.0.0.1"
    with (
        contextlib.closing(Dialogue(connection, "n1", tried[:2])) as dialogue,
        pytest.raises(NoPython) as caught,
    ):
        dialogue.arrive()
    assert caught.value.tried == f"/no/such/python: not found; {old}: Python 3.6.8"


def test_what_is_tried_begins_with_the_paths_python() -> None:
    assert pythons.candidates("/venv/python") == ("python3", "/venv/python", "python")
