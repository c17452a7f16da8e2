"""An engine that dials again while the controller was not looking: its outputs have no numbers, so those of
the new connection must not be mixed with what is still unread of the old one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from fakes.cluster import make_plan
from fakes.engine import Behaviour, FakeEngine
from vdisagg.control import wire
from vdisagg.control.endpoint import Endpoint
from vdisagg.control.sockets import Sockets
from vdisagg.plan.model import Instance

PATIENCE_S = 10.0
SETTLE_S = 0.3
"""For ZeroMQ's threads to have passed everything on; too short, and the test only proves less."""


class Heard:
    """Writes down what an endpoint says; `then` happens after the tenth token."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.what: list[str | int] = []
        self._then = then

    def engine_hello(self, name: str) -> None:
        self.what.append("hello")

    def engine_ready(self, name: str, payload: bytes, ready: wire.Ready) -> None:
        self.what.append("ready")

    def engine_outputs(self, name: str, message: wire.Outputs, frames: Sequence[bytes]) -> None:
        self.what += [token for output in message.outputs for token in output.new_token_ids]
        if self.what[-1] == 10:
            self._then()

    def engine_heard(self, name: str) -> None: ...

    def engine_lost(self, name: str) -> None:
        self.what.append("lost")

    def engine_back(self, name: str) -> None:
        self.what.append("back")

    def engine_dead(self, name: str, reason: str) -> None:
        self.what.append("dead")


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


class Engine:
    """An engine's sockets, without an engine: its outputs are what a test says."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], instance: Instance) -> None:
        self._context = context
        self._address = instance.outputs.zmq
        self._handshake, self._requests = self._dealer(), self._dealer()
        self._requests.connect(instance.requests.zmq)
        self._handshake.connect(instance.handshake.zmq)
        self._handshake.send(wire.encode(wire.Greeting("HELLO")))
        self._outputs = self._dialled()

    def loaded(self) -> None:
        """Say that it is ready."""
        named = SimpleNamespace(name="d0", _version="0.32.0", behaviour=Behaviour())
        self._requests.send(wire.encode(FakeEngine._ready(named)))  # type: ignore[arg-type]
        self._handshake.send(wire.encode(wire.Greeting("READY")))

    def say(self, first: int) -> None:
        """Fifty tokens, one a message."""
        for token in range(first, first + 50):
            outputs = [wire.Output("leg", [token])]
            self._outputs.send(wire.encode(wire.Outputs(outputs=outputs, timestamp=1.0)))
        time.sleep(SETTLE_S)

    def dial_again(self) -> None:
        """As ZeroMQ does when it has heard nothing of the other side."""
        self._outputs.close(linger=5000)
        self._outputs = self._dialled()

    def close(self) -> None:
        """End."""
        for socket in (self._handshake, self._requests, self._outputs):
            socket.close(linger=0)

    def _dealer(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, wire.IDENTITY)
        return socket

    def _dialled(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PUSH)
        socket.connect(self._address)
        return socket


@pytest.mark.parametrize("late", [False, True], ids=["nobody looks", "a batch is handled"])
def test_a_second_connection_made_while_is_not_mixed_with_the_first(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]], late: bool
) -> None:
    instance = make_plan(tmp_path, 1, 1, interval_s=3600).instances[1]
    sockets = Sockets()

    def again() -> None:
        engine.dial_again()
        engine.say(101)

    heard = Heard(then=again) if late else Heard()
    endpoint = Endpoint(sockets, instance, heard)
    engine = Engine(context, instance)
    try:
        deadline = time.monotonic() + PATIENCE_S

        def turn_until(*any_of: str | int) -> None:
            while not set(any_of) & set(heard.what):
                assert time.monotonic() < deadline, heard.what
                sockets.turn()

        turn_until("hello")
        engine.loaded()
        turn_until("ready")
        engine.say(1)
        if not late:
            again()
        turn_until(150, "lost")
        said = [what for what in heard.what if what in ("lost", *range(1, 151))]
        before = said[: said.index("lost")] if "lost" in said else said
        assert before == sorted(before, key=int), f"as if one stream: {before}"
    finally:
        del endpoint
        engine.close()
        sockets.close()
