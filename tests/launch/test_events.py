"""Events of a cluster: asked for once, followed over the lives of controllers, read without one."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fakes.cluster import make_plan
from vdisagg.cluster import record
from vdisagg.cluster.admin import Event, Events, Request
from vdisagg.control.admin_socket import AdminSocket
from vdisagg.control.history import History
from vdisagg.control.sockets import Sockets
from vdisagg.errors import ControllerGone
from vdisagg.launch.events import follow
from vdisagg.plan.model import Node, Ssh

CREATED = 1000.0


def event(number: int) -> Event:
    return Event(float(number), "p0", f"event {number}", number)


class Script:
    """Answers to questions, one after the other; what was asked, said and given."""

    def __init__(self, *answers: Events | ControllerGone) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []
        self.said: list[str] = []
        self.waits = 0

    def ask(self, after: int) -> Events:
        self.asked.append(after)
        answer = self._answers.pop(0)
        if isinstance(answer, ControllerGone):
            raise answer
        return answer

    def wait(self) -> None:
        self.waits += 1

    def follow(self) -> list[list[int]]:
        batches = follow(
            self.ask, is_over=lambda: not self._answers, wait=self.wait, say=self.said.append
        )
        return [[event.number for event in batch] for batch in batches]


def test_following_asks_for_what_is_new() -> None:
    script = Script(
        Events([event(1), event(2)], 2), Events([], 2), Events([event(3)], 3), Events([], 3)
    )
    assert script.follow() == [[1, 2], [3]]
    assert script.asked == [0, 2, 2, 3]
    assert (script.waits, script.said) == (4, [])


def test_a_controller_that_is_away_is_said_once_and_waited_for() -> None:
    gone = ControllerGone("nothing answers")
    script = Script(gone, gone, Events([event(1)], 1), gone, Events([event(2)], 2))
    assert script.follow() == [[1], [2]]
    assert script.asked == [0, 0, 0, 1, 1]
    assert script.said == [
        *("nothing answers; waiting for it", "the controller answers again"),
        *("nothing answers; waiting for it", "the controller answers again"),
    ]


def test_a_history_that_begins_anew_is_followed_from_its_beginning() -> None:
    script = Script(Events([event(8)], 8), Events([], 2), Events([event(1), event(2)], 2))
    assert script.follow() == [[8], [1, 2]]
    assert script.asked == [0, 8, 0]
    assert script.waits == 2, "the second question comes at once"


# -- the command ----------------------------------------------------------------------------


class Controller:
    """As much of a controller as has events."""

    def __init__(self, directory: Path) -> None:
        self._sockets = Sockets()
        self._history = History.open(directory, run=CREATED)
        self._admin = AdminSocket(self._sockets, directory, self._answer)
        self._lock = threading.Lock()
        self._ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _answer(self, request: Request) -> Events:
        assert request.op == "events"
        with self._lock:
            return self._history.after(request.after)

    def _run(self) -> None:
        while not self._ending:
            self._sockets.turn()
        self._admin.close()
        self._sockets.close()
        self._history.close()

    def add(self, what: str) -> None:
        with self._lock:
            self._history.add(1.7e9, "p0", what)

    def end(self) -> None:
        self._ending = True
        self._thread.join()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a recorded cluster."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    made = record.state_directory("fakes")
    plan = make_plan(made, 1, 1, interval_s=3600.0)
    record.write(made, record.Record(plan, CREATED, 1, "up", {}))
    return made


@pytest.fixture
def controller_of() -> Iterator[Callable[[Path], Controller]]:
    made: list[Controller] = []

    def make(directory: Path) -> Controller:
        made.append(Controller(directory))
        return made[-1]

    yield make
    for controller in made:
        controller.end()


COMMAND = [sys.executable, "-m", "vdisagg", "events"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done


def test_events_are_shown_as_lines_or_as_a_list(
    directory: Path, controller_of: Callable[[Path], Controller]
) -> None:
    controller = controller_of(directory)
    controller.add("one")
    controller.add("two\nlines")
    assert [line[19:] for line in run().stdout.splitlines()] == ["  p0: one", "  p0: two lines"]
    assert json.loads(run("--json").stdout) == [
        {"at": 1.7e9, "subject": "p0", "what": "one", "number": 1},
        {"at": 1.7e9, "subject": "p0", "what": "two\nlines", "number": 2},
    ]


def test_without_a_controller_what_it_wrote_is_shown_and_the_exit_code_is_1(
    directory: Path, controller_of: Callable[[Path], Controller]
) -> None:
    controller = controller_of(directory)
    controller.add("one")
    controller.end()
    done = run("--name", "fakes")
    assert (done.returncode, done.stdout[19:]) == (1, "  p0: one\n")
    assert "the controller does not answer" in done.stderr


@pytest.mark.parametrize("words", [("--follow",), ("-f", "--json")], ids=["text", "json"])
def test_following_survives_a_new_controller_and_ends_with_ctrl_c(
    directory: Path, controller_of: Callable[[Path], Controller], words: tuple[str, ...]
) -> None:
    controller = controller_of(directory)
    controller.add("one")
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        assert following.stderr is not None

        def next_one() -> str:
            assert following.stdout is not None
            line = following.stdout.readline()
            return str(json.loads(line)["what"]) if "--json" in words else line[25:].strip()

        try:
            assert next_one() == "one"
            controller.add("two")
            assert next_one() == "two"
            controller.end()
            assert "waiting for it" in following.stderr.readline()
            again = controller_of(directory)
            assert following.stderr.readline() == "the controller answers again\n"
            again.add("three")
            assert next_one() == "three", "and nothing twice"
            following.send_signal(signal.SIGINT)
            assert following.wait(30) == 0
            assert following.stderr.read() == ""
        finally:
            following.kill()


def test_following_ends_when_the_cluster_is_taken_down(
    directory: Path, controller_of: Callable[[Path], Controller]
) -> None:
    controller = controller_of(directory)
    controller.add("one")
    with subprocess.Popen(
        [*COMMAND, "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as following:
        try:
            assert following.stdout is not None
            assert following.stdout.readline()
            record.remove(directory)
            assert following.wait(30) == 0
            assert following.stderr is not None
            assert following.stderr.read() == "cluster fakes has been taken down\n"
        finally:
            following.kill()


@pytest.fixture
def silent_node(directory: Path) -> Iterator[None]:
    """The controller's: what listens there for SSH never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ssh = Ssh("127.0.0.1", port=listener.getsockname()[1])
        plan = make_plan(directory, 1, 1, interval_s=3600.0)
        plan = msgspec.structs.replace(
            plan, nodes=(Node(plan.controller.node, "cpu", "127.0.0.1", ssh=ssh),)
        )
        record.write(directory, record.Record(plan, CREATED, 1, "up", {}))
        yield


@pytest.mark.usefixtures("silent_node")
def test_a_controller_on_a_silent_node_is_not_waited_for_and_what_next_is_said() -> None:
    begun = time.monotonic()
    done = run("--name", "fakes")
    assert time.monotonic() - begun < 15, "5 s, while SSH tries for 20 s"
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not answer: nothing has come from here within 5 s; next: " in done.stderr


@pytest.mark.usefixtures("silent_node")
def test_following_a_silent_node_ends_with_ctrl_c_at_once() -> None:
    with subprocess.Popen([*COMMAND, "-f"], stderr=subprocess.PIPE, text=True) as following:
        try:
            assert following.stderr is not None
            assert "; waiting for it\n" in following.stderr.readline()
            begun = time.monotonic()
            following.send_signal(signal.SIGINT)
            assert following.wait(30) == 0
            assert time.monotonic() - begun < 10, "5 s, should it ask just now"
        finally:
            following.kill()


def test_of_a_cluster_that_is_not_up_there_are_none(directory: Path) -> None:
    record.remove(directory)
    done = run("--name", "fakes")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cluster fakes is not up" in done.stderr


def test_a_records_end_takes_what_the_controller_kept(directory: Path) -> None:
    kept = ("cluster.json", "events.jsonl", "events.jsonl.1", "lock")
    gone = ("journal", "journal.1", "journal.part", "controller.json", "controller.json.part")
    rng = random.Random(0)
    for name in (*kept[1:], *gone):
        (directory / name).write_bytes(rng.randbytes(10))
    record.remove(directory)
    assert {path.name for path in directory.iterdir()} == set(kept[1:])
