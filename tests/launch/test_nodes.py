"""A cluster over several nodes: all at once, no node's fault hides another's, none holds up the rest."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes import living
from fakes.node import FakeConnection
from vdisagg.cluster import leftovers, record
from vdisagg.cluster.snapshot import DownResult, Observation
from vdisagg.errors import Failure, LaunchFailed, Unreachable
from vdisagg.launch.background import at_once, failures, raise_all
from vdisagg.launch.down import down_found
from vdisagg.launch.lookout import Lookout
from vdisagg.launch.nodes import Nodes
from vdisagg.launch.up import up
from vdisagg.plan.model import Node, Restart, Secret, Ssh

if TYPE_CHECKING:
    from launch.conftest import Cluster
    from vdisagg.launch.cancel import Cancel
    from vdisagg.plan.model import Process

LOADS_FOR_EVER = "rm -f ready; echo loading; sleep 1000 & wait"
DIES = "rm -f ready; echo no memory; exit 7"


class Hosts:
    """Machines that a cluster's nodes are, by the name that SSH knows them by."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.connections: dict[str, list[FakeConnection]] = {}
        self.away: set[str] = set()

    def connect(self, node: str, ssh: Ssh, limit_s: float, cancel: Cancel) -> FakeConnection:
        if ssh.host in self.away:
            raise Unreachable(f"{node}: {ssh.host} does not answer")
        made = FakeConnection(self.root / ssh.host, node)
        self.connections.setdefault(ssh.host, []).append(made)
        return made

    def cut(self, host: str) -> None:
        """As a switch that dies: nothing goes through, and no new connection is made."""
        self.away.add(host)
        for connection in self.connections.get(host, []):
            connection.cut = True

    def heal(self, host: str) -> None:
        """New connections are made; old ones stay broken."""
        self.away.discard(host)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path / "homes")


@pytest.fixture
def spread(cluster: Cluster, hosts: Hosts) -> Iterator[Cluster]:
    """Prefill on n1, decode on n2, the rest here; commands as separate as those of the CLI."""
    cluster.nodes = (
        Node("here", "cpu", "127.0.0.1", work_directory=str(cluster.root)),
        *(Node(name, "cpu", "127.0.0.1", ssh=Ssh(f"{name}.example")) for name in ("n1", "n2")),
    )
    cluster.extra = {
        "p0": {"node": "n1", "directory": str(cluster.root / "n1" / "demo" / "p0")},
        "d0": {"node": "n2", "directory": str(cluster.root / "n2" / "demo" / "d0")},
    }
    with Nodes(cluster.plan, cluster.directory, connect=hosts.connect) as nodes:
        cluster.runner_for, cluster.runners_of = nodes, nodes.of
        yield cluster


def states(cluster: Cluster) -> dict[str, str]:
    return {process.name: process.state for process in cluster.status().processes}


def test_up_starts_each_process_on_its_node_and_down_leaves_nothing(
    spread: Cluster, hosts: Hosts
) -> None:
    spread.up()
    assert {host: len(made) for host, made in hosts.connections.items()} == {
        "n1.example": 1,
        "n2.example": 1,
    }
    view = spread.status()
    assert (view.healthy, view.problems) == (True, ())
    assert {process.name: process.node for process in view.processes} == {
        "controller": "here",
        "p0": "n1",
        "d0": "n2",
        "front-end": "here",
    }
    done = spread.down()
    assert {name: len(pids) for name, pids in done.ended.items()} == {
        "front-end": 1,
        "p0": 3,
        "d0": 3,
        "controller": 1,
    }
    assert spread.is_empty()


def test_failures_on_two_nodes_are_both_told_and_everything_is_undone(spread: Cluster) -> None:
    spread.extra["p0"] |= {"argv": ("/nowhere/vllm",)}
    spread.extra["d0"] |= {"argv": ("/elsewhere/vllm",)}
    with pytest.raises(LaunchFailed) as caught:
        spread.up()
    assert "n1: p0: /nowhere/vllm: no such file" in str(caught.value)
    assert "n2: d0: /elsewhere/vllm: no such file" in str(caught.value)
    assert spread.is_empty()
    assert record.read(spread.directory) is None


def test_a_process_that_dies_on_a_node_is_shown_with_its_last_lines(spread: Cluster) -> None:
    spread.engines["d0"] = DIES
    with pytest.raises(
        LaunchFailed, match=r"(?s)d0 died while starting: exit code 7.*\| no memory"
    ):
        spread.up()
    assert spread.is_empty()
    assert record.read(spread.directory) is None


def test_all_nodes_that_cannot_be_reached_are_told(spread: Cluster, hosts: Hosts) -> None:
    hosts.away |= {"n1.example", "n2.example"}
    nodes = Nodes(spread.plan, spread.directory, connect=hosts.connect)
    runners = {name: nodes(name) for name in ("n1", "n2")}
    asked = at_once({name: partial(runner.find, ()) for name, runner in runners.items()})
    with pytest.raises(Failure) as caught:
        raise_all(failures(asked))
    assert str(caught.value).splitlines() == [
        "n1: n1.example does not answer",
        "n2: n2.example does not answer",
    ]


def test_what_cannot_be_undone_is_told_and_kept_and_the_next_down_ends_it(
    spread: Cluster, hosts: Hosts, wait_until: Callable[..., None]
) -> None:
    spread.engines["d0"] = "rm -f ready; while [ ! -e go ]; do sleep 0.1; done; exit 7"
    cut = threading.Thread(target=_cut_then_die, args=(spread, hosts, wait_until))
    cut.start()
    with pytest.raises(LaunchFailed, match="d0 died while starting: exit code 7"):
        spread.up()
    cut.join()
    assert any(line.startswith("left on n1: p0; n1: ") for line in spread.talk.said)
    assert [name for name, pids in spread.pids().items() if pids] == ["p0"]
    assert record.read(spread.directory) is not None
    hosts.heal("n1.example")
    spread.down()
    assert spread.is_empty()
    assert record.read(spread.directory) is None


def _cut_then_die(cluster: Cluster, hosts: Hosts, wait_until: Callable[..., None]) -> None:
    wait_until(lambda: cluster.observe("d0").state == cluster.observe("p0").state == "running")
    hosts.cut("n1.example")
    (cluster.root / "n2" / "demo" / "d0" / "go").touch()


def test_e04_an_engine_that_the_controller_hears_needs_no_ssh_to_become_ready(
    spread: Cluster, hosts: Hosts, wait_until: Callable[..., None]
) -> None:
    spread.engines["p0"] = "rm -f ready; while [ ! -e go ]; do sleep 0.1; done; touch ready"
    spread.engines["p0"] += "; sleep 1000 & wait"

    def cut() -> None:
        wait_until(lambda: spread.observe("p0").state == "running")
        hosts.cut("n1.example")
        (spread.root / "n1" / "demo" / "p0" / "go").touch()

    cutting = threading.Thread(target=cut)
    cutting.start()
    spread.up()
    cutting.join()
    assert spread.observe("p0").state == "running"


def test_an_engine_on_another_node_is_mended_there(
    spread: Cluster, wait_until: Callable[..., None]
) -> None:
    spread.restart = Restart(limit=0)
    spread.up()
    before = {name: spread.observe(name).pid for name in ("controller", "p0", "d0", "front-end")}
    os.kill(before["p0"] or 0, signal.SIGKILL)
    wait_until(lambda: spread.observe("p0").gave_up)
    assert spread.up().restarted == ("p0",)
    after = {name: spread.observe(name).pid for name in before}
    assert {name for name in before if before[name] != after[name]} == {"p0"}
    assert spread.status().healthy


def test_an_engine_on_another_node_is_restarted_by_its_guard_there(
    spread: Cluster, wait_until: Callable[..., None]
) -> None:
    spread.restart = Restart()
    spread.up()
    os.kill(spread.observe("p0").pid or 0, signal.SIGKILL)
    wait_until(lambda: spread.observe("p0").generation == 2)
    wait_until(lambda: spread.status().healthy)
    assert spread.up().already


def test_a_cluster_with_a_node_that_cannot_be_seen_is_not_mended(
    spread: Cluster, hosts: Hosts
) -> None:
    spread.up()
    before = {name: spread.observe(name).pid for name in ("controller", "d0", "front-end")}
    hosts.cut("n1.example")
    with pytest.raises(Failure, match=r"(?s)cluster demo cannot be seen:.*p0 on n1.*down --name"):
        spread.up()
    hosts.heal("n1.example")
    assert {name: spread.observe(name).pid for name in before} == before
    assert spread.up().already


def test_status_says_why_a_node_is_unreachable_and_shows_the_rest(
    spread: Cluster, hosts: Hosts
) -> None:
    spread.up()
    hosts.cut("n1.example")
    assert spread.status().problems == ("p0 on n1: unreachable: n1: the connection is gone",)
    view = spread.status()
    assert view.problems == ("p0 on n1: unreachable: n1: n1.example does not answer",)
    assert not view.healthy
    assert states(spread) == {
        "controller": "ready",
        "p0": "unreachable",
        "d0": "ready",
        "front-end": "ready",
    }
    shown = next(process for process in view.processes if process.name == "p0")
    assert shown.detail == "n1: n1.example does not answer"
    hosts.heal("n1.example")
    assert spread.status().healthy


def test_down_ends_what_it_reaches_and_the_next_one_the_rest(spread: Cluster, hosts: Hosts) -> None:
    spread.up()
    hosts.cut("n1.example")
    with pytest.raises(Failure, match=r"(?s)cluster demo is not down:\n  left on n1: p0; n1: "):
        spread.down()
    assert [name for name, pids in spread.pids().items() if pids] == ["p0"]
    hosts.heal("n1.example")
    assert spread.down().ran
    assert spread.is_empty()
    assert record.read(spread.directory) is None


def test_down_removes_what_a_controller_on_a_node_kept_of_its_run_and_leaves_logs(
    spread: Cluster, hosts: Hosts
) -> None:
    directory = spread.root / "n1" / "demo" / "controller"
    spread.extra["controller"] = {"node": "n1", "directory": str(directory)}
    directory.mkdir(parents=True)
    for name in (leftovers.EVENTS_FILE, record.LOG_FILE, *leftovers.OF_A_RUN[1:]):
        (directory / name).write_text("a prompt")
    (directory / leftovers.OF_A_RUN[0]).mkdir()  # what can't be removed as a file
    record.write(spread.directory, record.Record(spread.plan, 0.0, 1, "up", {}))
    with pytest.raises(
        Failure, match=r"(?s)not down:\n  the journal, with the .*demo/controller on n1: .*next: "
    ):
        spread.down()
    assert record.read(spread.directory) is not None
    (directory / leftovers.OF_A_RUN[0]).rmdir()
    assert spread.down().ran
    there = {path.name for path in directory.iterdir()}
    assert there.isdisjoint(leftovers.OF_A_RUN)
    assert there >= {leftovers.EVENTS_FILE, record.LOG_FILE}


def test_what_a_run_without_a_record_left_of_its_messages_is_removed_as_well(
    spread: Cluster, hosts: Hosts
) -> None:
    spread.up()
    record.remove(spread.directory)
    kept = [Path(spread.plan.controller.directory), spread.directory]
    for directory in kept:
        (directory / leftovers.JOURNAL_FILE).write_text("a prompt")
    find(spread, hosts)
    assert [path for directory in kept for path in directory.glob("journal*")] == []


def test_up_over_nodes_that_do_not_answer_starts_nothing_twice(
    spread: Cluster, hosts: Hosts
) -> None:
    spread.up()
    recorded = record.read(spread.directory)
    assert recorded is not None
    before = spread.pids()
    record.write(spread.directory, msgspec.structs.replace(recorded, phase="starting"))
    hosts.cut("n2.example")
    with pytest.raises(Failure, match=r"(?s)cannot be seen:\n  d0 on n2: .*vdisagg down"):
        spread.up()
    assert spread.pids() == before


def test_d08_a_changed_file_is_held_against_the_nodes_that_the_record_names(
    spread: Cluster, hosts: Hosts
) -> None:
    """Another machine by the same name says nothing of what runs on the first one."""
    spread.up()
    before = spread.pids()
    elsewhere = [Node(n.name, "cpu", n.address, ssh=Ssh("other.example")) for n in spread.nodes[1:]]
    spread.nodes = (spread.nodes[0], *elsewhere)
    spread.topology = {"name": "demo", "decode": {"count": 2}}
    spread.digest = "digest-2"
    with Nodes(spread.plan, spread.directory, connect=hosts.connect) as nodes:
        spread.runner_for, spread.runners_of = nodes, nodes.of
        with pytest.raises(Failure, match=r"decode\.count: 1 → 2\n.*vdisagg down --name demo"):
            spread.up()
    assert spread.pids() == before


def find(cluster: Cluster, hosts: Hosts) -> DownResult:
    """`vdisagg down --find`, from a machine that knows nothing but the topology."""
    with Nodes(cluster.plan, cluster.directory, connect=hosts.connect) as nodes:
        return down_found(
            cluster.plan, nodes, state_directory=cluster.directory, say=cluster.talk.say
        )


def test_a_run_whose_record_is_lost_is_found_by_its_marks_and_ended(
    spread: Cluster, hosts: Hosts
) -> None:
    spread.up()
    record.remove(spread.directory)
    assert not spread.down().ran
    done = find(spread, hosts)
    assert {name: len(pids) for name, pids in done.ended.items()} == {
        "p0 on n1": 3,
        "d0 on n2": 3,
        "front-end on here": 1,
        "controller on here": 1,
    }
    assert spread.is_empty()
    assert any(
        "found on n1: p0" in line and str(spread.directory) in line for line in spread.talk.said
    )
    assert not find(spread, hosts).ran


def test_processes_of_one_name_in_two_folders_are_both_found(
    spread: Cluster, hosts: Hosts, tmp_path: Path
) -> None:
    spread.up()
    record.remove(spread.directory)
    spread.extra["p0"] |= {"directory": str(tmp_path / "elsewhere" / "demo" / "p0")}
    process = next(p for p in spread.plan.processes() if p.name == "p0")
    spread.runner_for("n1").start(process, {}, 1.0)
    spread.nodes = tuple(
        msgspec.structs.replace(node, work_directory=str(spread.root / node.name))
        if node.name == "n1"
        else node
        for node in spread.nodes
    )
    ended = find(spread, hosts).ended
    assert len([name for name in ended if name.endswith(" on n1")]) == 2
    assert spread.is_empty()


def test_a_node_that_cannot_be_searched_is_told_and_the_others_are_searched(
    spread: Cluster, hosts: Hosts
) -> None:
    spread.up()
    record.remove(spread.directory)
    hosts.cut("n1.example")
    with pytest.raises(Failure, match=r"not searched: n1; n1: n1\.example does not answer"):
        find(spread, hosts)
    assert [name for name, pids in spread.pids().items() if pids] == ["p0"]
    hosts.heal("n1.example")
    assert list(find(spread, hosts).ended) == ["p0 on n1"]
    assert spread.is_empty()


def test_secrets_reach_a_process_on_a_node_and_stand_in_no_file(
    spread: Cluster, tmp_path: Path
) -> None:
    spread.engines["p0"] = 'rm -f ready; sleep 1000 & [ "$HF_TOKEN" ] && : >ready; wait'
    spread.extra["p0"] |= {"secrets": (Secret("HF_TOKEN", from_env="MY_TOKEN"),)}
    spread.up({"MY_TOKEN": "t0k3n"})
    texts = [*living.texts(tmp_path).values()]
    assert len(texts) > 8
    assert not [text for text in texts if "t0k3n" in text]


def test_a_broken_connection_is_made_anew_and_no_engine_notices(
    spread: Cluster, hosts: Hosts
) -> None:
    spread.up()
    before = spread.pids()
    for connection in hosts.connections["n1.example"]:
        connection.cut = True
    assert states(spread)["p0"] == "unreachable"
    assert spread.status().healthy
    assert len(hosts.connections["n1.example"]) == 2
    assert spread.pids() == before


class SlowRunner:
    """A node that answers when it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked = 0

    def observe_all(self, processes: list[Process], started: object) -> list[Observation]:
        self.asked += 1
        assert self.let_go.wait(20)
        return [Observation("running")] * len(processes)


def test_a_slow_node_holds_up_nobody_and_is_not_asked_again_before_it_answers(
    spread: Cluster, wait_until: Callable[..., None]
) -> None:
    slow = SlowRunner()
    lookout = Lookout(spread.plan, lambda node: slow if node == "n1" else spread.runner)  # type: ignore[arg-type,return-value]
    for _ in range(2):
        seen = lookout.look(limit_s=4.0)
        assert (seen["p0"].state, seen["d0"].state) == ("unreachable", "never")
        assert seen["p0"].reason == "n1: no answer within 4 s"
    assert slow.asked == 1
    slow.let_go.set()
    wait_until(lambda: lookout.look(limit_s=4.0)["p0"].state == "running")


def test_who_waits_while_another_connects_shares_what_comes_of_it(spread: Cluster) -> None:
    trying, let_go, attempts = threading.Event(), threading.Event(), []

    def connect(node: str, ssh: Ssh, limit_s: float, cancel: Cancel) -> FakeConnection:
        attempts.append(node)
        trying.set()
        assert let_go.wait(20)
        raise Unreachable(f"{node}: nobody there")

    nodes = Nodes(spread.plan, spread.directory, connect=connect)
    failed: list[str] = []

    def ask() -> None:
        try:
            nodes("n1").find([])
        except Unreachable as exc:
            failed.append(str(exc))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    threads[0].start()
    assert trying.wait(20)
    for thread in threads[1:]:
        thread.start()
    let_go.set()
    for thread in threads:
        thread.join()
    assert failed == ["n1: nobody there"] * 3
    assert len(attempts) <= 3


def test_a_launch_gives_up_on_a_node_that_stays_silent_and_keeps_the_record(
    spread: Cluster, hosts: Hosts, wait_until: Callable[..., None]
) -> None:
    """Time goes a hundred times as fast in it. The controller does not hear of the process either."""
    directory = str(spread.root / "n1" / "demo" / "front-end")
    spread.extra["front-end"] = {
        "node": "n1",
        "directory": directory,
        "argv": ("sh", "-c", "rm -f ready; exec sleep 1000"),
    }
    spread.launch_s = 1e6

    def cut() -> None:
        wait_until(lambda: spread.observe("front-end").state == "running")
        hosts.cut("n1.example")

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises(LaunchFailed, match=r"front-end: unreachable: n1: .*\nnext: mend the netw"):
        up(
            spread.plan,
            spread.runner_for,
            state_directory=spread.directory,
            report=spread.talk,
            environment={},
            clock=lambda: time.monotonic() * 100,
        )
    cutting.join()
    assert "unreachable" in spread.talk.stages["front-end"]
    assert record.read(spread.directory) is not None
    hosts.heal("n1.example")
    spread.down()
    assert spread.is_empty()


class Watch:
    """A clock that goes on only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class WorkingRunner:
    """A node that takes a second to answer, and counts."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.asked = 0

    def observe_all(self, processes: list[Process], started: object) -> list[Observation]:
        self.asked += 1
        self.watch.now += 1.0
        return [Observation("running", pid=self.asked)] * len(processes)


def test_glances_ask_a_node_again_only_after_a_rest(
    spread: Cluster, wait_until: Callable[..., None]
) -> None:
    watch = Watch()
    runner = WorkingRunner(watch)
    lookout = Lookout(spread.plan, lambda node: runner, clock=watch)  # type: ignore[arg-type,return-value]
    first = lookout.glance()
    assert {seen.state for seen in first.values()} == {"running"}
    assert runner.asked == 3  # nodes
    assert lookout.glance() == first
    watch.now += 2.9
    assert lookout.glance() == first
    assert runner.asked == 3
    watch.now += 0.2
    wait_until(lambda: all(seen != first[name] for name, seen in lookout.glance().items()))
    assert runner.asked == 6
