"""Runners over a real sshd: what they start lives on without them, and is found again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes import living
from hosts.sshd import Sshd, missing
from vdisagg.cluster import record
from vdisagg.errors import Failure, Unreachable
from vdisagg.launch.nodes import Nodes
from vdisagg.launch.ssh.connect import connect
from vdisagg.plan.model import Node, Process, Ssh

if TYPE_CHECKING:
    from launch.conftest import Cluster
    from vdisagg.launch.cancel import Cancel
    from vdisagg.launch.runner import Runner
    from vdisagg.launch.ssh.connection import Connection

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    # The defaults of sshd, but for sessions: twice as many engines as there may be on one connection.
    with Sshd(tmp_path / "sshd", home=tmp_path / "home", options=["MaxSessions 4"]) as started:
        yield started


@pytest.fixture
def spread(cluster: Cluster, sshd: Sshd) -> Iterator[Cluster]:
    """Both engines on a node behind sshd, the rest here."""

    def dial(node: str, ssh: Ssh, limit_s: float, cancel: Cancel) -> Connection:
        config = sshd.ssh_config("n1")
        return connect(node, ssh, limit_s=limit_s, config=config, cancel=cancel)

    node = Node("n1", "cpu", "127.0.0.1", ssh=Ssh("n1"))
    cluster.nodes = (Node("here", "cpu", "127.0.0.1", work_directory=str(cluster.root)), node)
    for name in ("p0", "d0"):
        directory = str(cluster.root / "n1" / "demo" / name)
        cluster.extra[name] = {"node": "n1", "directory": directory}
    with Nodes(cluster.plan, cluster.directory, connect=dial) as nodes:
        cluster.runner_for, cluster.runners_of = nodes, nodes.of
        yield cluster


@pytest.fixture
def runner(spread: Cluster) -> Runner:
    return spread.runner_for("n1")


@pytest.fixture
def make_process(runner: Runner) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(script: str, name: str = "p0") -> Process:
        argv = ("sh", "-c", script)
        made.append(Process(name, "prefill", "n1", argv, {}, f"~/.vdisagg/demo/{name}"))
        return made[-1]

    yield make
    runner.stop_all(made, 0.1)


def test_a_process_outlives_its_login_and_ends_with_its_code(
    sshd: Sshd,
    runner: Runner,
    make_process: Callable[..., Process],
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    process = make_process("while [ ! -e go ]; do sleep 0.1; done; echo $KEY; exit 7")
    started = runner.start(process, {"KEY": 'it\'s a "k3y"'}, 1.0)
    sshd.drop_connections()
    wait_until(lambda: not sshd.logins())
    with pytest.raises(Unreachable):
        runner.observe(process)
    seen = runner.observe(process)
    assert (seen.state, seen.pid, seen.guard_alive) == ("running", started.pid, True)
    (tmp_path / "home/.vdisagg/demo/p0/go").touch()
    wait_until(lambda: runner.observe(process).state == "exited")
    assert runner.observe(process).code == 7
    assert runner.tail(process, 1) == ['it\'s a "k3y"']


def test_the_login_ends_although_what_it_started_lives(
    sshd: Sshd, spread: Cluster, runner: Runner, make_process: Callable[..., Process]
) -> None:
    """sshd ends a channel only once nobody holds it open any more; else closing would take long."""
    process = make_process("sleep 1000")
    started = runner.start(process, {}, 1.0)
    for pid in (started.pid, started.guard_pid):
        held = living.held(pid)
        assert held
        assert not [name for name in held if name.startswith(("pipe:", "socket:"))]


def test_d15_more_processes_than_sessions_are_started_at_once(
    runner: Runner, make_process: Callable[..., Process]
) -> None:
    processes = [make_process("sleep 1000", f"p{i}") for i in range(10)]
    failed: list[Failure] = []

    def start(process: Process) -> None:
        try:
            runner.start(process, {}, 1.0)
        except Failure as exc:
            failed.append(exc)

    threads = [threading.Thread(target=start, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert {seen.state for seen in runner.observe_all(processes)} == {"running"}


def test_following_ends_over_there_when_it_is_closed_here(
    sshd: Sshd,
    runner: Runner,
    make_process: Callable[..., Process],
    wait_until: Callable[..., None],
) -> None:
    process = make_process("echo one; sleep 1000")
    runner.start(process, {}, 1.0)
    lines = runner.follow(process, 5)
    assert list(islice(lines, 1)) == ["one"]
    following = [pid for pid, _ in sshd.logins() if b"\0follow\0" in _words(pid)]
    assert following
    lines.close()  # type: ignore[attr-defined]  # it is a generator
    wait_until(lambda: not [pid for pid in following if b"\0follow\0" in _words(pid)])


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_up_status_and_down_over_ssh(spread: Cluster) -> None:
    spread.up()
    assert spread.status().problems == ()
    assert {name for name, pids in spread.down().ended.items() if pids} == {
        "front-end",
        "p0",
        "d0",
        "controller",
    }
    assert spread.is_empty()


def test_after_a_kill_of_guard_and_engine_down_leaves_nothing(
    spread: Cluster, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    spread.up()
    seen = spread.observe("p0")
    for pid in (seen.guard_pid, seen.pid):
        os.kill(pid or 0, signal.SIGKILL)
    wait_until(lambda: spread.runner_for("n1").observe(_process(spread, "p0")).state == "gone")
    spread.down()
    assert not [pid for pid in seen.members if is_alive(pid)]
    assert spread.is_empty()


def test_with_sshd_gone_down_ends_what_is_here_and_the_next_one_the_rest(
    sshd: Sshd, spread: Cluster
) -> None:
    spread.up()
    sshd.stop()
    with pytest.raises(Failure, match=r"left on n1: p0, d0; n1: "):
        spread.down()
    assert sorted(name for name, pids in spread.pids().items() if pids) == ["d0", "p0"]
    problems = spread.status().problems
    assert any(line.startswith("p0, d0 on n1: unreachable: n1: ") for line in problems)
    sshd.start()
    spread.down()
    assert spread.is_empty()
    assert record.read(spread.directory) is None


def _process(cluster: Cluster, name: str) -> Process:
    return next(process for process in cluster.plan.processes() if process.name == name)
