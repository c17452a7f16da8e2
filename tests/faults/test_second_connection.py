"""An engine that dials again while the controller was not looking: its outputs have no numbers, so those of
the new connection must not be mixed with what is still unread of the old one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zmq

from fakes.cluster import make_plan
from fakes.engine import FakeEngine, KvStore
from vdisagg.control import wire
from vdisagg.control.endpoint import Endpoint
from vdisagg.control.sockets import Sockets

PATIENCE_S = 10.0
SETTLE_S = 0.3
"""For ZeroMQ's threads to have passed everything on; too short, and the test only proves less."""


class Heard:
    """Writes down what an endpoint says."""

    def __init__(self) -> None:
        self.what: list[str | int] = []

    def engine_hello(self, name: str) -> None:
        self.what.append("hello")

    def engine_ready(self, name: str, payload: bytes, ready: wire.Ready) -> None:
        self.what.append("ready")

    def engine_outputs(self, name: str, message: wire.Outputs, frames: Sequence[bytes]) -> None:
        self.what += [token for output in message.outputs for token in output.new_token_ids]

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


def test_a_second_connections_outputs_come_after_the_news_that_the_first_is_gone(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    instance = make_plan(tmp_path, 1, 1, interval_s=3600).instances[1]
    sockets, heard = Sockets(), Heard()
    endpoint = Endpoint(sockets, instance, heard)
    engine = FakeEngine(instance.handshake.zmq, KvStore())
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "ready" not in heard.what:
            assert time.monotonic() < deadline, heard.what
            sockets.turn()
        for first in (1, 101):  # one connection, and while nobody looks, another
            push = context.socket(zmq.PUSH)
            push.connect(instance.outputs.zmq)
            for token in range(first, first + 50):
                outputs = [wire.Output("leg", [token])]
                push.send(wire.encode(wire.Outputs(outputs=outputs, timestamp=1.0)))
            push.close(linger=5000)
            time.sleep(SETTLE_S)
        while 150 not in heard.what and "lost" not in heard.what:
            assert time.monotonic() < deadline, heard.what
            sockets.turn()
        said = [what for what in heard.what if what in ("lost", *range(1, 151))]
        before = said[: said.index("lost")] if "lost" in said else said
        mixed = [token for token in before if isinstance(token, int) and token > 100]
        assert not mixed or before == sorted(before), f"as if one stream: {before}"
    finally:
        engine.kill()
        del endpoint
        sockets.close()
