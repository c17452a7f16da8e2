"""What guards leave behind is looked at on the controller's own machine, and nowhere else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fakes.cluster import Cluster, make_plan
from vdisagg.control.processes import ProcessWatch, how_it_ended
from vdisagg.plan.model import Node, Plan, Ssh

HERE = Node("here", "cpu", "127.0.0.1")
ALSO_HERE = Node("n1", "cpu", "127.0.0.1")
AWAY = Node("n1", "cpu", "192.0.2.1", ssh=Ssh("n1.example"))


def write(file: Path, **value: object) -> None:
    """As a guard writes: a new file takes the old one's place."""
    file.parent.mkdir(exist_ok=True)
    part = file.with_name("part")
    part.write_text(json.dumps(value))
    part.replace(file)


class Guard:
    """Writes what a guard does, and knows no process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pid = 100

    def start(self, at: float = 2.0) -> None:
        self.pid += 1
        write(self.directory / "process.json", pid=self.pid, start_ticks=7, at=at)

    def end(self, number: int | None = 9, at: float = 3.0, restart_at: float | None = None) -> None:
        code = None if number else 0
        ended = {"signal": number, "code": code, "restart_at": restart_at, "reason": ""}
        write(self.directory / "exit.json", pid=self.pid, start_ticks=7, at=at, **ended)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(tmp_path, 1, 1, interval_s=60.0)


@pytest.fixture
def p0(tmp_path: Path) -> Guard:
    return Guard(tmp_path / "p0")


@pytest.mark.parametrize(
    ("node", "controller_node", "watched"),
    [
        (ALSO_HERE, "here", ["d0", "p0"]),
        (AWAY, "here", ["d0"]),
        (AWAY, "n1", ["p0"]),
    ],
)
def test_only_instances_on_the_controllers_machine_are_watched(
    tmp_path: Path, plan: Plan, node: Node, controller_node: str, watched: list[str]
) -> None:
    """Another node's directory may have a name that is here too, with another run's files in it."""
    prefill, decode = plan.instances
    process = msgspec.structs.replace(prefill.process, node="n1")
    plan = msgspec.structs.replace(
        plan,
        instances=(msgspec.structs.replace(prefill, process=process), decode),
        controller=msgspec.structs.replace(plan.controller, node=controller_node),
        nodes=(HERE, node),
    )
    for name in ("p0", "d0", "front"):
        guard = Guard(tmp_path / name)
        guard.start()
        guard.end()
    watch = ProcessWatch(plan, since=1.0)
    assert sorted(watch.started()) == watched
    assert sorted(name for name, _ in watch.ended()) == watched
    here = controller_node == "here" or node is ALSO_HERE
    assert watch.front_started() is here
    assert (watch.front_ended() is not None) is here


def test_each_start_and_each_end_is_told_once(plan: Plan, p0: Guard) -> None:
    watch = ProcessWatch(plan, since=1.0)
    assert (watch.started(), watch.ended()) == ([], [])
    for _ in range(3):
        p0.start()
        assert (watch.started(), watch.started(), watch.ended()) == (["p0"], [], [])
        p0.end(restart_at=3.0)
        assert watch.started() == []
        assert watch.ended() == [
            ("p0", "its process was ended by signal 9; it is started again at once")
        ]
        assert watch.ended() == []


@pytest.mark.parametrize("starts_asked_first", [True, False])
def test_a_restart_between_two_looks_is_an_end_and_then_a_start(
    plan: Plan, p0: Guard, starts_asked_first: bool
) -> None:
    watch = ProcessWatch(plan, since=1.0)
    p0.start()
    watch.started()
    p0.end()
    p0.start()
    if starts_asked_first:
        assert watch.started() == []
    assert [name for name, _ in watch.ended()] == ["p0"]
    assert (watch.started(), watch.ended()) == (["p0"], [])


def test_two_restarts_between_two_looks_are_an_end_and_a_start(plan: Plan, p0: Guard) -> None:
    watch = ProcessWatch(plan, since=1.0)
    p0.start()
    watch.started()
    for _ in range(2):
        p0.end()
        p0.start()
    assert watch.ended() == [("p0", "its process was replaced by another")]
    assert (watch.started(), watch.ended()) == (["p0"], [])


def test_the_last_end_of_a_process_that_runs_again_is_no_news_to_a_new_controller(
    plan: Plan, p0: Guard
) -> None:
    p0.start()
    p0.end()
    p0.start()
    watch = ProcessWatch(plan, since=1.0)
    assert (watch.ended(), watch.started(), watch.ended()) == ([], ["p0"], [])


def test_a_restart_that_is_called_off_is_no_second_end(plan: Plan, p0: Guard) -> None:
    watch = ProcessWatch(plan, since=1.0)
    p0.start()
    watch.started()
    p0.end(restart_at=9.0)
    assert len(watch.ended()) == 1
    p0.end(restart_at=None)
    assert watch.ended() == []


def test_files_of_an_earlier_run_say_nothing(plan: Plan, p0: Guard) -> None:
    p0.start(at=0.5)
    p0.end(at=0.6)
    watch = ProcessWatch(plan, since=1.0)
    assert (watch.started(), watch.ended()) == ([], [])


def test_files_that_have_not_changed_are_not_read_again(plan: Plan, p0: Guard) -> None:
    watch = ProcessWatch(plan, since=1.0)
    p0.start()
    assert watch.started() == ["p0"]
    file = p0.directory / "process.json"
    seen = file.stat()
    with file.open(
        "r+"
    ) as open_file:  # in place, and its time put back: only a reader would notice
        open_file.write("x" * 5)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert (watch.started(), watch.ended()) == ([], [])
    p0.end()
    assert len(watch.ended()) == 1


def test_the_front_end_is_told_apart_from_the_instances(plan: Plan, tmp_path: Path) -> None:
    front = Guard(tmp_path / "front")
    watch = ProcessWatch(plan, since=1.0)
    front.start()
    assert (watch.started(), watch.front_started(), watch.front_started()) == ([], True, False)
    front.end()
    assert (watch.ended(), watch.front_ended()) == ([], "its process was ended by signal 9")
    assert watch.front_ended() is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"code": 7}, "its process ended with exit code 7"),
        ({"signal": 9, "restart_at": 12.0}, "signal 9; it is started again in 2 s"),
        ({"signal": 9, "reason": "was stopped for 30 s, and killed"}, "9 (was stopped for 30 s, "),
        ({"code": 1, "gave_up": True}, "exit code 1, and its guard gave up"),
    ],
)
def test_how_it_ended_says_what_becomes_of_it(said: dict[str, object], words: str) -> None:
    assert words in how_it_ended({"code": None, "signal": None, "at": 10.0, **said})


def test_how_the_front_end_ended_is_among_the_events(cluster_of: Callable[..., Cluster]) -> None:
    cluster = cluster_of().up()
    guard = Guard(cluster.directory / "front")
    guard.start(at=time.time())
    guard.end(9, at=time.time())
    cluster.until(
        lambda: any("front: its process was ended by signal 9" in e for e in cluster.events())
    )
