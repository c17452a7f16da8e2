"""What a guard has written of its process is lost, and the process lives: it is found, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes import living
from fakes.node import FakeConnection
from vdisagg.cluster import record
from vdisagg.cluster.admin import SOCKET_NAME
from vdisagg.errors import LaunchFailed
from vdisagg.launch import guard, pythons
from vdisagg.launch.dialogue import Dialogue
from vdisagg.launch.down import down_found
from vdisagg.launch.local import LocalRunner
from vdisagg.launch.nodes import Nodes
from vdisagg.launch.remote import RemoteRunner
from vdisagg.launch.runner import Mark
from vdisagg.plan.model import Node, Process, Restart, Ssh

if TYPE_CHECKING:
    from launch.conftest import Cluster
    from vdisagg.cluster.record import Started
    from vdisagg.launch.cancel import Cancel

Lose = Callable[[Path], object]


def emptied(directory: Path) -> None:
    (directory / guard.PROCESS_FILE).write_text("")


def damaged(directory: Path) -> None:
    (directory / guard.PROCESS_FILE).write_text("{}")


def moved(directory: Path) -> None:
    directory.rename(directory.with_name("old"))


class Lost:
    """A process, started by a runner on this machine."""

    def __init__(self, directory: Path) -> None:
        self.process = Process("p0", "prefill", "here", ("sleep", "1000"), {}, str(directory))
        self.directory = directory
        self.runner = LocalRunner()

    def start(self, restart: Restart | None = None) -> dict[str, Started]:
        """What the launcher has recorded of it then."""
        policy = restart or Restart(policy="never")
        return {"p0": self.runner.start(self.process, {}, 0.3, restart=policy)}


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Lost]:
    made = Lost(tmp_path / "demo" / "p0")
    yield made
    made.runner.stop(made.process, 0.1)


@pytest.mark.parametrize("lose", [living.remove, emptied, damaged, moved])
def test_a_process_whose_files_are_lost_is_seen_and_ended_with_its_guard(
    lost: Lost, is_alive: Callable[[int], bool], lose: Lose
) -> None:
    started = lost.start()["p0"]
    assert not lost.runner.observe(lost.process).lost
    lose(lost.directory)
    seen = lost.runner.observe(lost.process)
    assert (seen.state, seen.lost, seen.pid) == ("running", True, started.pid)
    assert (seen.guard_pid, seen.guard_alive) == (started.guard_pid, True)
    done = lost.runner.stop(lost.process, 0.3)
    assert (done.ended, done.left) == ((started.pid,), ())
    assert not is_alive(started.pid)
    assert not is_alive(started.guard_pid)
    assert lost.runner.observe(lost.process).state == "never"


@pytest.mark.parametrize("lose", [living.remove, emptied, moved])
def test_without_its_guard_a_process_whose_files_are_lost_is_known_by_the_record(
    lost: Lost, is_alive: Callable[[int], bool], wait_until: Callable[..., None], lose: Lose
) -> None:
    recorded = lost.start()
    started = recorded["p0"]
    os.kill(started.guard_pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(started.guard_pid))
    lose(lost.directory)
    (seen,) = lost.runner.observe_all([lost.process], recorded)
    assert (seen.state, seen.lost, seen.guard_alive) == ("running", True, False)
    assert lost.runner.stop(lost.process, 0.3, recorded).ended == (started.pid,)
    assert not is_alive(started.pid)


def test_a_process_that_was_restarted_is_found_although_the_record_knows_its_predecessor(
    lost: Lost, is_alive: Callable[[int], bool], wait_until: Callable[..., None]
) -> None:
    recorded = lost.start(Restart())
    os.kill(recorded["p0"].pid, signal.SIGKILL)
    wait_until(lambda: lost.runner.observe(lost.process).generation == 2)
    again = lost.runner.observe(lost.process)
    living.remove(lost.directory)
    (seen,) = lost.runner.observe_all([lost.process], recorded)
    assert (seen.state, seen.pid) == ("running", again.pid)
    lost.runner.stop(lost.process, 0.3, recorded)
    assert not is_alive(again.pid or 0)
    assert not is_alive(again.guard_pid or 0)


def parent_of(pid: int) -> int:
    stat = guard.read_stat(pid)
    assert stat is not None
    return int(stat["parent"])


def test_a_daemon_that_the_process_left_to_its_guard_is_ended_with_it(
    lost: Lost, is_alive: Callable[[int], bool], wait_until: Callable[..., None]
) -> None:
    """Both are the guard's children then, and lead a session."""
    script = "(setsid sh -c 'echo $$ >part; mv part pid; exec sleep 1000' &); exec sleep 1000"
    lost.process = msgspec.structs.replace(lost.process, argv=("sh", "-c", script))
    started = lost.start()["p0"]
    wait_until((lost.directory / "pid").exists)
    daemon = int((lost.directory / "pid").read_text())
    wait_until(lambda: parent_of(daemon) == started.guard_pid)
    living.remove(lost.directory)
    assert lost.runner.observe(lost.process).pid == started.pid
    assert lost.runner.stop(lost.process, 0.3).ended == tuple(sorted((started.pid, daemon)))
    assert not is_alive(daemon)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_a_pid_that_the_record_names_and_another_process_has_is_spared(
    lost: Lost, is_alive: Callable[[int], bool], change: dict[str, object]
) -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as foreign:
        try:
            stat = guard.read_stat(foreign.pid)
            assert stat is not None
            ticks = stat["start_ticks"]
            own = record.Started(
                foreign.pid, ticks, guard.boot_id(), foreign.pid, ticks, str(lost.directory), 0.0
            )
            (seen,) = lost.runner.observe_all([lost.process], {"p0": own})
            assert seen.members == (foreign.pid,), "else this test proves nothing"
            if "start_ticks" in change:
                change = {"start_ticks": ticks - 1, "guard_start_ticks": ticks - 1}
            other = {"p0": msgspec.structs.replace(own, **change)}
            (seen,) = lost.runner.observe_all([lost.process], other)
            assert seen.state == "never"
            assert lost.runner.stop(lost.process, 0.3, other).ended == ()
            assert is_alive(foreign.pid)
        finally:
            foreign.kill()


def test_who_only_has_the_words_of_a_guard_is_spared(
    lost: Lost, is_alive: Callable[[int], bool]
) -> None:
    """Such as the launcher's own, which waits for the guard that it has sent on its way."""
    words = [sys.executable, "-I", "-S", guard.__file__, "start", str(lost.directory)]
    for place in ({"process_group": 0}, {"start_new_session": True}):
        with subprocess.Popen(words, stdin=subprocess.PIPE, **place) as waiting:
            try:
                assert lost.runner.observe(lost.process).state == "never"
                assert lost.runner.stop(lost.process, 0.3).ended == ()
                assert is_alive(waiting.pid)
            finally:
                waiting.kill()


def test_a_second_start_is_refused_although_the_files_of_the_first_are_lost(lost: Lost) -> None:
    started = lost.start()["p0"]
    living.remove(lost.directory)
    with pytest.raises(LaunchFailed, match=f"p0: already runs in .* as pid {started.pid}; next"):
        lost.start()
    assert lost.runner.observe(lost.process).pid == started.pid


def test_on_a_node_a_process_is_known_by_the_home_that_its_guard_has(
    tmp_path: Path, is_alive: Callable[[int], bool]
) -> None:
    """Two users' homes, or two machines of a test, have the same words for their directories."""
    process = Process("p0", "prefill", "n1", ("sleep", "1000"), {}, "~/.vdisagg/demo/p0")
    node, mark = Node("n1", "cpu", "127.0.0.1", ssh=Ssh("n1.example")), Mark("demo", "here", "/x")
    with (
        closing(dialogue_to(tmp_path / "one", node)) as one,
        closing(dialogue_to(tmp_path / "two", node)) as two,
    ):
        runners = [RemoteRunner(dialogue, node, mark) for dialogue in (one, two)]
        started = runners[0].start(process, {}, 0.3)
        living.remove(tmp_path / "one" / ".vdisagg" / "demo" / "p0")
        assert [runner.observe(process).state for runner in runners] == ["running", "never"]
        assert runners[1].stop(process, 0.3).ended == ()
        assert [len(runner.find(["~/.vdisagg/demo"])) for runner in runners] == [1, 0]
        os.kill(started.guard_pid, signal.SIGKILL)
        (seen,) = runners[0].observe_all([process], {"p0": started})
        assert (seen.state, seen.lost) == ("running", True)
        assert runners[0].stop(process, 0.3, {"p0": started}).ended == (started.pid,)
        assert not is_alive(started.pid)


def dialogue_to(home: Path, node: Node) -> Dialogue:
    return Dialogue(FakeConnection(home), node.name, pythons.candidates(node.python))


def tell_ready(directory: Path) -> None:
    """The stand-in for a controller knows by a file there what a real one is told."""
    directory.mkdir(exist_ok=True)
    (directory / "ready").touch()


@pytest.mark.parametrize("lose", [living.remove, emptied])
@pytest.mark.parametrize("name", ["d0", "controller"])
def test_of_a_cluster_it_is_told_kept_and_taken_down(
    cluster: Cluster, is_alive: Callable[[int], bool], lose: Lose, name: str
) -> None:
    cluster.up()
    before = cluster.pids()
    lose(cluster.root / "demo" / name)
    tell_ready(cluster.root / "demo" / name)
    view = cluster.status()
    assert {process.name: process.state for process in view.processes}[name] == "ready"
    (problem,) = view.problems
    assert problem.startswith(f"{name}: runs on, but its directory, or process.json in it, was")
    assert cluster.up().already
    assert any(text.startswith(f"{name}: runs on, but its dir") for text in cluster.talk.said)
    assert cluster.pids() == before
    done = cluster.down()
    assert done.ended[name][0] == before[name][0]
    assert not [pid for pids in before.values() for pid in pids if is_alive(pid)]
    assert record.read(cluster.directory) is None


def test_of_a_cluster_whose_whole_folder_is_gone_nothing_is_left_after_down(
    cluster: Cluster, is_alive: Callable[[int], bool]
) -> None:
    cluster.up()
    before = cluster.pids()
    for name in ("p0", "d0"):
        os.kill(cluster.observe(name).guard_pid or 0, signal.SIGKILL)
    living.remove(cluster.root / "demo")
    seen = {process.name: process.observation for process in cluster.status().processes}
    assert {name: one.pid for name, one in seen.items()} == {n: p[0] for n, p in before.items()}
    assert {one.state for one in seen.values()} == {"running"}
    assert cluster.down().ran
    assert not [pid for pids in before.values() for pid in pids if is_alive(pid)]


def test_on_nodes_it_is_the_same_and_a_lost_record_does_not_hinder(
    cluster: Cluster, tmp_path: Path, is_alive: Callable[[int], bool]
) -> None:
    node = Node("n1", "cpu", "127.0.0.1", ssh=Ssh("n1.example"))
    cluster.nodes = (Node("here", "cpu", "127.0.0.1", work_directory=str(cluster.root)), node)
    for name in ("p0", "d0"):
        directory = str(cluster.root / "n1" / "demo" / name)
        cluster.extra[name] = {"node": "n1", "directory": directory}
    made: list[FakeConnection] = []

    def connect(node: str, ssh: Ssh, limit_s: float, cancel: Cancel) -> FakeConnection:
        made.append(FakeConnection(tmp_path / "home", node))
        return made[-1]

    with Nodes(cluster.plan, cluster.directory, connect=connect) as nodes:
        cluster.runner_for, cluster.runners_of = nodes, nodes.of
        for with_record in (True, False):
            cluster.up()
            before = [pid for pids in cluster.pids().values() for pid in pids]
            living.remove(cluster.root / "n1" / "demo" / "p0")
            emptied(cluster.root / "n1" / "demo" / "d0")
            living.remove(cluster.root / "demo" / "controller")
            tell_ready(cluster.root / "n1" / "demo" / "p0")
            assert cluster.up().already
            living.remove(cluster.root / "n1" / "demo" / "p0")
            if with_record:
                assert len(cluster.down().ended["p0"]) == 3
            else:
                (cluster.directory / record.RECORD_FILE).write_text("{")
                say = cluster.talk.say
                down_found(cluster.plan, nodes, state_directory=cluster.directory, say=say)
                left = {path.name for path in cluster.directory.iterdir()}
                assert not left & {record.RECORD_FILE, SOCKET_NAME}
            assert not [pid for pid in before if is_alive(pid)]


def test_what_is_known_may_be_said_on_stdin(lost: Lost) -> None:
    recorded = lost.start()
    os.kill(recorded["p0"].guard_pid, signal.SIGKILL)
    living.remove(lost.directory)
    told = json.dumps({str(lost.directory): msgspec.to_builtins(recorded["p0"])})
    words = [sys.executable, "-I", "-S", guard.__file__, "stop", "0.3", str(lost.directory)]
    done = subprocess.run(words, input=told, capture_output=True, text=True, check=True)
    answer = done.stdout.partition(guard.BEGIN)[2].partition(guard.END)[0]
    assert json.loads(answer)[0]["ended"] == [recorded["p0"].pid]
