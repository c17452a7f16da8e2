"""The tunnel's loop, over connections that break when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fakes.cluster import make_plan
from vdisagg.cluster.snapshot import Observation, Progress
from vdisagg.errors import Failure, Unreachable
from vdisagg.launch import passage, tunnel
from vdisagg.launch.readiness import Sighting, progress
from vdisagg.launch.ssh.connection import Completed
from vdisagg.plan.model import Node, Process, Ssh


class Fake:
    """Implements tunnel.Connection."""

    def __init__(self, session: str = "", *, refuses: bool = False) -> None:
        """`session`: pid and start time of what serves it; a node that can't tell fails."""
        self.alive = True
        self.ended: list[tuple[str, ...]] = []
        self._session = session
        self.forwarded: list[tuple[int, int]] = []
        self.closed = False
        self._refuses = refuses

    def remote_forward(self, port: int, local_port: int) -> None:
        if self._refuses:
            raise Failure("n1: the port is taken")
        self.forwarded.append((port, local_port))

    def run(self, words: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        if "end" in words:
            self.ended.append(tuple(words[-2:]))
            return Completed(0, "", "")
        return Completed(0 if self._session else 1, self._session, "")

    def close(self) -> None:
        self.closed = True


def run(made: Iterator[Fake | Failure], said: list[str], stopping: threading.Event) -> list[str]:
    """What was noted of it."""
    noted: list[str] = []

    def connect() -> Fake:
        found = next(made)
        if isinstance(found, Failure):
            raise found
        return found

    tunnel.keep(connect, [7001, 7002], stopping, said.append, noted.append)
    return noted


def test_a_node_gets_the_three_ports_of_each_of_its_engines(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 1, 2, interval_s=10)
    elsewhere = msgspec.structs.replace(
        plan.instances[0],
        process=msgspec.structs.replace(plan.instances[0].process, node="elsewhere"),
    )
    plan = msgspec.structs.replace(
        plan,
        instances=(elsewhere, *plan.instances[1:]),
        control="tunnel",
        nodes=(Node("here", "cpu", "192.0.2.7", Ssh("box")), Node("elsewhere", "cpu", "192.0.2.8")),
    )
    d0, d1 = plan.instances[1:]
    assert list(plan.tunnelled()["here"]) == [
        a.port for i in (d0, d1) for a in (i.handshake, i.requests, i.outputs)
    ]


def test_a_tunnel_carries_nothing_until_its_own_process_has_said_that_it_does(
    tmp_path: Path,
) -> None:
    process = Process("tunnel-n1", "tunnel", "here", ("py",), {}, str(tmp_path))
    plan = msgspec.structs.replace(make_plan(tmp_path, 1, 1, interval_s=10), tunnels=(process,))
    running = {"tunnel-n1": Observation("running", pid=42)}
    assert passage.faults(plan, running) == {"tunnel-n1": "not connected yet"}
    passage.write(tmp_path, passage.Passage(41, ""))
    assert passage.faults(plan, running) == {"tunnel-n1": "not connected yet"}
    passage.write(tmp_path, passage.Passage(42, "n1: refused"))
    assert passage.faults(plan, running) == {"tunnel-n1": "n1: refused"}
    passage.write(tmp_path, passage.Passage(42, ""))
    assert passage.faults(plan, running) == {"tunnel-n1": ""}
    assert passage.faults(plan, {"tunnel-n1": Observation("exited", code=1)}) == {}


def test_a_tunnel_that_carries_nothing_is_not_ready_and_says_why(tmp_path: Path) -> None:
    process = Process("tunnel-n1", "tunnel", "here", ("py",), {}, str(tmp_path))
    plan = msgspec.structs.replace(make_plan(tmp_path, 1, 1, interval_s=10), tunnels=(process,))
    running = {"tunnel-n1": Observation("running")}

    def entry(fault: str) -> Progress:
        seen = Sighting(running, None, False, {"tunnel-n1": fault})
        return next(one for one in progress(plan, seen, 0.0) if one.name == "tunnel-n1")

    refused, carries = entry("n1: refused"), entry("")
    assert (refused.stage, refused.done, refused.detail) == ("connecting", False, "n1: refused")
    assert (carries.stage, carries.done, carries.detail) == ("ready", True, "")


def test_a_broken_connection_is_made_again_with_all_its_ports() -> None:
    stopping = threading.Event()
    first, busy, last = Fake(), Fake(refuses=True), Fake()
    said: list[str] = []

    def script() -> Iterator[Fake | Failure]:
        yield Unreachable("n1: no route")
        first.alive = False  # breaks as soon as it is up
        yield first
        yield busy  # the node still holds the broken one's ports
        stopping.set()
        yield last

    noted = run(script(), said, stopping)
    assert first.forwarded == last.forwarded == [(7001, 7001), (7002, 7002)]
    assert [c.closed for c in (first, busy, last)] == [True] * 3
    assert said == [
        "n1: no route",
        "up: 2 ports",
        "the connection broke; connecting again",
        "n1: the port is taken",
        "up: 2 ports",
    ]
    assert noted == ["" if one == "up: 2 ports" else one for one in said]


def test_what_served_a_broken_connection_is_ended_before_its_ports_are_asked_for() -> None:
    """A firewall has forgotten the connection: the node does not know yet that it is gone."""
    stopping = threading.Event()
    first, busy, last = Fake("41 700"), Fake("42 800", refuses=True), Fake("43 900")

    def script() -> Iterator[Fake | Failure]:
        first.alive = False
        yield first
        yield busy
        stopping.set()
        yield last

    run(script(), [], stopping)
    assert first.ended == []
    assert busy.ended == [("41", "700")]
    assert last.ended == [("42", "800")]
