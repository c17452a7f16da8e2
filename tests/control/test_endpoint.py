"""Our sockets to an engine, on real sockets: when it is lost, when it is back, and what is not either."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import zmq

from fakes.cluster import free_ports
from fakes.engine import FakeEngine, KvStore
from fakes.limit import Limit
from fakes.messages import request
from fakes.relay import Relay
from vdisagg.control import wire
from vdisagg.control.endpoint import Endpoint
from vdisagg.control.sockets import HIGH_WATER, LOOK_S, Connections, Sockets
from vdisagg.errors import PlanConflict
from vdisagg.launch.local import SWITCHES
from vdisagg.plan.model import Address, Instance, Process

LIMIT_S = 9.0
"""Short for a test; half of it is longer than a machine may stall."""

SLACK_S = 1.0
PATIENCE_S = 60.0


class Scene:
    """An endpoint, who hears of its engine, and engines that dial it."""

    def __init__(self, *, heartbeat_s: float | None = None) -> None:
        self.heard: list[str] = []
        self.outputs: list[wire.Output] = []
        self.payload = b""
        self.sockets = Sockets(heartbeat_s=heartbeat_s)
        handshake, requests, outputs = (Address("127.0.0.1", port) for port in free_ports(3))
        process = Process("d0", "decode", "here", ("true",), {}, "")
        self.instance = Instance("d0", "decode", process, (), handshake, requests, outputs)
        self.endpoint = Endpoint(self.sockets, self.instance, self)
        self.engines: list[FakeEngine] = []
        self.relays: list[Relay] = []

    # EngineEvents

    def engine_hello(self, name: str) -> None:
        self.heard.append("hello")

    def engine_ready(self, name: str, payload: bytes, ready: wire.Ready) -> None:
        self.payload = payload
        self.heard.append("ready")

    def engine_outputs(self, name: str, message: wire.Outputs, frames: Sequence[bytes]) -> None:
        self.outputs += message.outputs

    def engine_heard(self, name: str) -> None: ...

    def engine_lost(self, name: str) -> None:
        self.heard.append("lost")

    def engine_back(self, name: str) -> None:
        self.heard.append("back")

    def engine_dead(self, name: str, reason: str) -> None:
        self.heard.append(f"dead: {reason}")

    # what happens

    def engine(self, *, heartbeat_s: float | None = None) -> FakeEngine:
        """An engine starts, and is ready."""
        before = self.heard.count("ready")
        engine = FakeEngine(self.instance.handshake.zmq, KvStore(), heartbeat_s=heartbeat_s)
        self.engines.append(engine)
        self.until(lambda: self.heard.count("ready") > before and self.endpoint.joined)
        return engine

    def relayed(self) -> tuple[Relay, Relay]:
        """Let what dials requests and outputs go through relays; before the engine starts."""
        requests, outputs = self.instance.requests, self.instance.outputs
        self.relays = [Relay(requests.port), Relay(outputs.port)]
        through, back = (Address("127.0.0.1", relay.port) for relay in self.relays)
        # What the engine is told, not what is bound.
        self.endpoint._instance = Instance(
            "d0",
            "decode",
            self.instance.process,
            (),
            self.instance.handshake,
            through,
            back,
        )
        return self.relays[0], self.relays[1]

    def pinged(self, relay: Relay) -> None:
        """Wait until the engine has been pinged, and nothing but pinged, for a while."""
        before = relay.sent_back
        self.until(lambda: relay.sent_back > before)

    def ask(self, name: str = "a") -> bool:
        """Send a request."""
        return self.endpoint.send(wire.ADD, wire.encode(request(name)))

    def answered(self, name: str) -> bool:
        """Whether a request has come to its end."""
        return any(o.request_id == name and o.finish_reason is not None for o in self.outputs)

    def until(self, condition: Callable[[], object]) -> None:
        """Turn until something holds."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, self.heard
            self.sockets.turn()

    def news(self) -> list[str]:
        """What was heard since the last time, everything that lies there being read."""
        for _ in range(4):
            self.sockets.turn()
        heard, self.heard = self.heard, []
        return heard

    def close(self) -> None:
        for engine in self.engines:
            engine.kill()
        for relay in self.relays:
            relay.close()
        self.sockets.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


@pytest.fixture
def pinging() -> Iterator[Scene]:
    """With heartbeats: nothing else notices a black hole, and a machine that stalls may be taken for one."""
    made = Scene(heartbeat_s=LIMIT_S)
    yield made
    made.close()


class Stock:
    """An engine's two sockets, held in the test's own hands."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.context = zmq.Context()
        handshake = self.context.socket(zmq.DEALER)
        handshake.setsockopt(zmq.IDENTITY, wire.IDENTITY)
        handshake.connect(scene.instance.handshake.zmq)
        handshake.send(wire.encode({"status": "HELLO"}))
        scene.until(lambda: "hello" in scene.heard)  # what dials before that is an earlier engine's
        self.handshake = handshake
        self.requests = self.dial(zmq.DEALER, scene.instance.requests)
        self.outputs = self.dial(zmq.PUSH, scene.instance.outputs)

    def dial(self, kind: int, address: Address) -> zmq.Socket[bytes]:
        made = self.context.socket(kind)
        if kind == zmq.DEALER:
            made.setsockopt(zmq.IDENTITY, wire.IDENTITY)
        made.connect(address.zmq)
        return made

    def ready(self) -> Stock:
        ready = {"max_model_len": 9, "num_gpu_blocks": 8, "block_size": 7, "vllm_version": "0.32.0"}
        self.requests.send(wire.encode(ready))
        self.handshake.send(wire.encode({"status": "READY"}))
        self.scene.until(lambda: "ready" in self.scene.heard)
        self.scene.until(lambda: all(c.count == 1 for c in self.scene.endpoint._connections))
        self.scene.heard.clear()
        return self

    def hang_up(self, which: str) -> None:
        """End one connection, and wait until it is noticed."""
        dialled, connections = self._of(which)
        dialled.disconnect(getattr(self.scene.instance, which).zmq)
        # ZeroMQ goes on with it only when it is called.
        self.scene.until(lambda: not dialled.poll(0) and connections.count == 0)

    def dial_again(self, which: str) -> None:
        """Make that connection again, and wait until it is noticed."""
        dialled, connections = self._of(which)
        dialled.connect(getattr(self.scene.instance, which).zmq)
        self.scene.until(lambda: connections.count == 1)

    def _of(self, which: str) -> tuple[zmq.Socket[bytes], Connections]:
        requests, outputs = self.scene.endpoint._connections
        return (self.requests, requests) if which == "requests" else (self.outputs, outputs)

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def stock(scene: Scene) -> Iterator[Stock]:
    made = Stock(scene)
    yield made
    made.close()


def test_an_engine_says_hello_is_ready_and_answers(scene: Scene) -> None:
    scene.engine()
    assert scene.ask("a")
    scene.until(lambda: scene.answered("a"))
    assert scene.news() == ["hello", "ready"]


def test_an_engine_that_ends_is_lost_once(scene: Scene) -> None:
    engine = scene.engine()
    scene.news()
    engine.kill()
    scene.until(lambda: all(c.count == 0 for c in scene.endpoint._connections))
    assert scene.news() == ["lost"]
    assert not scene.ask(), "nobody is there to be sent to"


@pytest.mark.parametrize("which", ["requests", "outputs"])
def test_an_engine_is_lost_with_either_connection_and_back_with_both(
    scene: Scene, stock: Stock, which: str
) -> None:
    stock.ready()
    stock.hang_up(which)
    assert scene.news() == ["lost"]
    stock.dial_again(which)
    assert scene.news() == ["back"]


def test_an_engine_is_back_when_both_connections_are_there_and_not_before(
    scene: Scene, stock: Stock
) -> None:
    stock.ready()
    stock.hang_up("requests")
    stock.hang_up("outputs")
    assert scene.news() == ["lost"]
    stock.dial_again("outputs")
    assert scene.news() == []
    stock.dial_again("requests")
    assert scene.news() == ["back"]


def test_a_new_connection_of_an_engine_makes_the_one_before_void(
    scene: Scene, stock: Stock
) -> None:
    """What was sent into the old one may be lost; that it ends at last is no news."""
    stock.ready()
    again = stock.dial(zmq.DEALER, scene.instance.requests)
    scene.until(lambda: "back" in scene.heard)
    assert scene.news() == ["lost", "back"]
    stock.requests.close(linger=0)
    scene.until(lambda: not scene.endpoint._connections[0]._void)
    assert scene.news() == []
    again.close(linger=0)
    scene.until(lambda: "lost" in scene.heard)


def test_an_engine_is_lost_with_its_latest_connection_though_an_earlier_one_lingers(
    scene: Scene, stock: Stock
) -> None:
    stock.ready()
    again = stock.dial(zmq.DEALER, scene.instance.requests)
    scene.until(lambda: "back" in scene.heard)
    again.close(linger=0)
    scene.until(lambda: scene.heard.count("lost") == 2)
    assert scene.news() == ["lost", "back", "lost"]


def test_whoever_only_knocks_is_no_engine(scene: Scene) -> None:
    engine = scene.engine()
    scene.news()
    ports = [scene.instance.requests.port, scene.instance.outputs.port]
    for port in ports:
        with socket.create_connection(("127.0.0.1", port)):
            pass
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    assert scene.ask("a")
    scene.until(lambda: scene.answered("a"))
    assert scene.news() == []
    engine.kill()
    scene.until(lambda: "lost" in scene.heard)
    with socket.create_connection(("127.0.0.1", ports[0])):
        assert scene.news() == ["lost"]


def test_b07_a_restarted_engine_is_another_one_and_its_forerunners_end_is_no_news(
    scene: Scene, stock: Stock
) -> None:
    stock.ready()
    scene.engine()
    assert scene.news() == ["hello", "ready"]
    stock.close()
    scene.until(lambda: not any(c._void for c in scene.endpoint._connections))
    assert scene.ask("a")
    scene.until(lambda: scene.answered("a"))
    assert scene.news() == []


def test_an_engine_that_has_ended_is_not_back_until_it_says_hello(
    scene: Scene, stock: Stock
) -> None:
    stock.ready()
    scene.endpoint.forget()
    stock.outputs.send(wire.encode(wire.Outputs(outputs=[wire.Output("a", [1])])))
    stock.hang_up("requests")
    stock.dial_again("requests")
    assert scene.news() == []
    assert scene.outputs == [], "what was left of it is nobody's"
    scene.engine()
    assert scene.ask("b")
    scene.until(lambda: scene.answered("b"))
    assert scene.news() == ["hello", "ready"]


def test_the_death_notice_is_told_after_what_was_said_before_it(scene: Scene) -> None:
    engine = scene.engine()
    engine.die()
    scene.until(lambda: "dead: the engine core says that it is dead" in scene.heard)


def test_a_controller_after_another_has_its_engine_back_without_a_hello() -> None:
    first = Scene()
    engine = first.engine()
    first.sockets.close()
    second = Scene()
    second.sockets.close()  # for its ports are others: bind those that the engine knows
    second.sockets = Sockets()
    second.endpoint = Endpoint(second.sockets, first.instance, second)
    second.endpoint.restore(first.payload)
    second.engines = [engine]
    try:
        second.until(lambda: "back" in second.heard)
        assert second.ask("a")
        second.until(lambda: second.answered("a"))
        assert second.news() == ["back"]
    finally:
        second.close()


def test_a_full_queue_takes_no_more_and_a_word_of_the_engine_brings_it_back() -> None:
    """Kilobytes each, for ZeroMQ and the kernel keep some more on both sides. Without heartbeats: an
    engine that reads nothing does not see the pings behind what it does not read."""
    scene = Scene()
    stock = Stock(scene).ready()
    frames = [bytes(8000)]
    sent = 0
    while scene.endpoint.send(wire.ADD, b"", frames):
        sent += 1
        assert sent < 4 * HIGH_WATER
    assert sent >= HIGH_WATER
    stock.outputs.send(wire.encode(wire.Outputs()))
    scene.until(lambda: "back" in scene.heard)
    assert scene.news() == ["back"]
    stock.close()
    scene.close()


def test_an_address_that_is_taken_is_named_with_what_it_is_for() -> None:
    sockets = Sockets()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        made = sockets.bindable(zmq.PULL, "d0 outputs")
        with pytest.raises(PlanConflict, match="d0 outputs: cannot bind"):
            sockets.bind(made, address, "d0 outputs")
    assert made.closed
    sockets.close()


@pytest.mark.parametrize("limit_s", [0.3, 1.5, 30.0, 600.0, 8.64e7])
def test_both_sides_notice_within_the_limit(limit_s: float) -> None:
    sockets = Sockets(heartbeat_s=limit_s)
    made = sockets.bindable(zmq.ROUTER, "d0 requests")
    interval, timeout, ttl = (
        int(made.getsockopt(option)) / 1000
        for option in (zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT, zmq.HEARTBEAT_TTL)
    )
    assert 0 < interval + timeout <= limit_s
    assert interval < ttl <= min(limit_s, 6553.5)
    sockets.close()


def test_without_a_limit_there_are_no_heartbeats() -> None:
    sockets = Sockets()
    assert sockets.bindable(zmq.PULL, "d0 outputs").getsockopt(zmq.HEARTBEAT_IVL) == 0
    sockets.close()


def test_e02_a_black_hole_is_noticed_here_and_the_engine_dials_again_when_it_is_gone(
    pinging: Scene,
) -> None:
    """Nothing is closed, nothing is reset: bytes vanish. And the engine has nothing to send."""
    relays = pinging.relayed()
    engine = pinging.engine()
    pinging.news()
    for relay in relays:
        pinging.pinged(relay)
    for relay in relays:
        relay.swallow()
    limit = Limit(LIMIT_S + SLACK_S, look_s=2 * LOOK_S)
    pinging.until(lambda: limit.over() or "lost" in pinging.heard)
    assert "lost" in pinging.heard
    pinging.until(lambda: all(c.count == 0 for c in pinging.endpoint._connections))
    assert not pinging.ask("unsent")
    for relay in relays:
        relay.heal()
    pinging.until(lambda: "back" in pinging.heard)
    assert pinging.ask("a")
    pinging.until(lambda: pinging.answered("a"))
    assert [added.request_id for added in engine.added] == ["a"], "nothing is sent late"
    assert pinging.news() == ["lost", "back"]


def test_e02_one_black_hole_of_the_two_is_enough_to_be_lost(pinging: Scene) -> None:
    _, outputs = pinging.relayed()
    pinging.engine()
    pinging.news()
    pinging.pinged(outputs)
    outputs.swallow()
    pinging.until(lambda: "lost" in pinging.heard)
    outputs.heal()
    pinging.until(lambda: "back" in pinging.heard)
    assert pinging.news() == ["lost", "back"]


def test_e02_an_engine_that_pings_itself_dials_again_whenever_the_hole_was(pinging: Scene) -> None:
    """A message ends the watch that a ping began: here the hole comes right after one."""
    requests, _ = pinging.relayed()
    engine = pinging.engine(heartbeat_s=LIMIT_S)
    assert pinging.ask("a")
    pinging.until(lambda: pinging.answered("a"))
    requests.swallow()
    pinging.until(lambda: "lost" in pinging.heard)
    requests.heal()
    pinging.until(lambda: "back" in pinging.heard)
    assert pinging.ask("b")
    pinging.until(lambda: pinging.answered("b"))
    assert [added.request_id for added in engine.added] == ["a", "b"]


STOCK = """
import sys
from fakes.engine import FakeEngine, KvStore
FakeEngine(sys.argv[1], KvStore())._thread.join()
"""


def test_e02_a_stock_process_with_the_switch_dials_again_whenever_the_hole_was(
    pinging: Scene,
) -> None:
    requests, _ = pinging.relayed()
    paths = [SWITCHES, *(Path(p) for p in sys.path if p)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    words = [sys.executable, "-c", STOCK, pinging.instance.handshake.zmq]
    with subprocess.Popen(words, env=environment | {"VDISAGG_PING_S": "1"}) as process:
        try:
            pinging.until(lambda: "ready" in pinging.heard)
            assert pinging.ask("a")
            pinging.until(lambda: pinging.answered("a"))
            requests.swallow()
            pinging.until(lambda: "lost" in pinging.heard)
            requests.heal()
            pinging.until(lambda: "back" in pinging.heard)
            assert pinging.ask("b")
            pinging.until(lambda: pinging.answered("b"))
        finally:
            process.kill()


def test_e02_an_idle_engine_stays_connected(pinging: Scene) -> None:
    """It answers pings though it has nothing to say, for longer than one may go unanswered."""
    requests, _ = pinging.relayed()
    pinging.engine()
    for _ in range(8):
        pinging.pinged(requests)
    assert pinging.news() == ["hello", "ready"]
