"""Our sockets to one engine: we play the front end that it dials.

The engine core dials the handshake socket and says HELLO; we tell it where requests and outputs go.
When it has loaded it connects there, sends its ready payload on the request socket and READY on the
handshake socket. From then on requests flow out of the ROUTER and outputs into the PULL. Both
sockets are bound by us, so they outlive an engine, and a new generation finds them again.

An engine is lost when either connection is: requests, or outputs, may have gone with it. It is back
when both are there again without a new HELLO, unless it is known to have ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol

import zmq

from vdisagg.control import wire
from vdisagg.control.sockets import Connections, Handler, Sockets, send
from vdisagg.errors import ProtocolError
from vdisagg.plan.model import Instance

STATISTICS_ONLY: Final = b"\x99\x00\x90"
"""How an outputs message without outputs begins: nine fields, engine 0, none."""

NOTHING_MOVED: Final = b"kv_connector_stats\xc0"
"""In statistics: nothing of the connector's."""

STATISTICS_S: Final = 0.1
"""How often an engine's bare statistics are taken in."""


class EngineEvents(Protocol):
    """Who hears of what an engine says."""

    def engine_hello(self, name: str) -> None:
        """The engine core has dialled in."""

    def engine_ready(self, name: str, payload: bytes, ready: wire.Ready) -> None:
        """It has loaded, and can be sent requests."""

    def engine_outputs(self, name: str, message: wire.Outputs, frames: Sequence[bytes]) -> None:
        """One step's outputs; `frames` are the tensors behind them."""

    def engine_heard(self, name: str) -> None:
        """It lives, and has nothing new to say."""

    def engine_lost(self, name: str) -> None:
        """A connection of it is gone, with what was under way on it."""

    def engine_back(self, name: str) -> None:
        """It is connected again without a new HELLO: the same engine. Or it speaks again."""

    def engine_dead(self, name: str, reason: str) -> None:
        """It says itself that it is dead, or what it says can't be understood."""


class Endpoint:
    """One instance's handshake, request and output sockets."""

    def __init__(self, sockets: Sockets, instance: Instance, events: EngineEvents) -> None:
        """Binds all three; raises PlanConflict."""
        name = self._name = instance.name
        self._sockets = sockets
        self._instance = instance
        self._events = events
        self._payload: bytes | None = None
        self._greeted_ready = False
        self._missed = False
        """Whether it has been lost, and is not back yet."""
        self._choked = False
        self._gone = False
        self._statistics_at = 0.0
        self._late_statistics = b""
        self._outputs = sockets.bindable(zmq.PULL, f"{name} outputs")
        self._requests = sockets.bindable(zmq.ROUTER, f"{name} requests")
        self._handshake = sockets.bindable(zmq.ROUTER, f"{name} handshake")
        sockets.watch(self._outputs, self._guarded(self._on_outputs))
        sockets.watch(self._requests, self._guarded(self._on_ready_payload))
        sockets.watch(self._handshake, self._guarded(self._on_handshake))
        changed = self._guarded(self._on_connections)
        self._connections = [
            Connections(sockets, socket, changed, dialled=False)
            for socket in (self._requests, self._outputs)
        ]
        sockets.bind(self._outputs, instance.outputs, f"{name} outputs")
        sockets.bind(self._requests, instance.requests, f"{name} requests")
        sockets.bind(self._handshake, instance.handshake, f"{name} handshake")

    def restore(self, payload: bytes) -> None:
        """The engine was ready under the controller before this one, and will dial again: no HELLO.

        `payload`: its ready payload. It is back when it is connected.
        """
        self._payload, self._greeted_ready, self._missed = payload, True, True

    @property
    def joined(self) -> bool:
        """Whether the engine has dialled both its sockets, which it does when it has loaded."""
        return all(each.count > 0 for each in self._connections)

    def assume(self, payload: bytes) -> None:
        """The engine has loaded and said so, but to a controller that is no more. `payload`: what to take
        for its ready payload, unless it has come."""
        self._payload, self._greeted_ready = self._payload or payload, True
        self._perhaps_ready()

    def forget(self) -> None:
        """The engine has ended: what there still is of it, or comes, is nobody's, until a HELLO."""
        self._gone = True

    def send(self, kind: bytes, payload: bytes, frames: Sequence[bytes] = ()) -> bool:
        """Queue a message for the engine, and await outputs.

        False when no engine is connected, or its queue is full: then it is back when it speaks.
        """
        try:
            send(self._requests, [wire.IDENTITY, kind, payload, *frames])
        except zmq.ZMQError as exc:
            if exc.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._choked = exc.errno == zmq.EAGAIN
            return False
        self._sockets.await_(self._outputs)
        return True

    def rest(self) -> None:
        """No output is due: what the engine says unasked can wait a little."""
        self._sockets.rest(self._outputs)

    def _guarded(self, handler: Handler) -> Handler:
        """What can't be understood is this engine's end, and nobody else's."""

        def handle() -> None:
            try:
                handler()
            except ProtocolError as exc:
                self._events.engine_dead(self._name, str(exc))

        return handle

    def _on_handshake(self) -> None:
        for identity, payload, *_ in self._sockets.messages(self._handshake, frames=2):
            greeting = wire.decode_greeting(payload)
            if greeting.status == "HELLO":
                self._begin()
                welcome = wire.Welcome(
                    wire.Addresses([self._instance.requests.zmq], [self._instance.outputs.zmq])
                )
                self._handshake.send_multipart([identity, wire.encode(welcome)])
                self._events.engine_hello(self._name)
            elif greeting.status == "READY":
                self._greeted_ready = True
                self._perhaps_ready()

    def _begin(self) -> None:
        """Another engine: nothing is left of the one before."""
        self._payload, self._greeted_ready = None, False
        self._missed = self._choked = self._gone = False
        for connections in self._connections:
            connections.renew()

    def _on_ready_payload(self) -> None:
        for _identity, payload, *_ in self._sockets.messages(self._requests, frames=2):
            self._payload = payload
            self._perhaps_ready()

    def _perhaps_ready(self) -> None:
        """Ready is both: READY on the handshake and the payload on the request socket."""
        if self._payload is None or not self._greeted_ready or self._gone:
            return
        ready = wire.decode_ready(self._payload)
        wire.check_version(ready.vllm_version)
        self._events.engine_ready(self._name, self._payload, ready)

    def _on_outputs(self) -> None:
        for payload, *frames in self._sockets.messages(self._outputs, frames=1):
            # Outputs bear no numbers, so what may be a second connection's must not pass for more of
            # the first one's: its coming has been told by the time that its message is here.
            self._connections[-1].look()
            if self._gone:
                continue
            if payload == wire.ENGINE_CORE_DEAD and not frames:
                self._events.engine_dead(self._name, "the engine core says that it is dead")
                continue
            if self._is_repetition(payload):
                self._late_statistics = payload
                self._events.engine_heard(self._name)
                continue
            if not payload.startswith(STATISTICS_ONLY):
                self._statistics_at = 0.0  # what follows may say that it has given blocks back
            self._late_statistics = b""
            if self._choked:
                self._choked = False
                self._events.engine_back(self._name)
            self._events.engine_outputs(self._name, wire.decode_outputs(payload), frames)

    def _is_repetition(self, payload: bytes) -> bool:
        """Whether a message has statistics only, right after others.

        Prefill engines with blocks that nobody has read yet take steps without a pause, and report each:
        thousands a second, that cost more to decode than all the rest. What a connector reports counts,
        and is never passed over.
        """
        if not payload.startswith(STATISTICS_ONLY) or NOTHING_MOVED not in payload:
            return False
        now = time.monotonic()
        if now - self._statistics_at < STATISTICS_S:
            return True
        self._statistics_at = now
        return False

    def catch_up(self) -> None:
        """Take in the last statistics that were passed over; call now and then."""
        if self._late_statistics:
            payload, self._late_statistics = self._late_statistics, b""
            self._events.engine_outputs(self._name, wire.decode_outputs(payload), [])

    def _on_connections(self) -> None:
        if self._gone:
            return
        if any(each.lost for each in self._connections) and not self._missed:
            self._missed = True
            self._events.engine_lost(self._name)
        if self._missed and all(each.count > 0 for each in self._connections):
            self._missed = False
            if self._greeted_ready:
                self._events.engine_back(self._name)
