"""Our sockets to the front end: we play the one remote, headless engine that it waits for.

The front end binds a handshake socket and opens HTTP only when its engine is READY, so we dial it when
there is a working link and not before. It answers HELLO with one input/output pair per API server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import zmq

from vdisagg.control import wire
from vdisagg.control.sockets import Connections, Handler, Sockets, messages, send
from vdisagg.errors import ProtocolError
from vdisagg.plan.model import Address


class FrontEvents(Protocol):
    """Who hears of what the API servers send. `api` is the API server's index."""

    def front_attached(self, api_servers: int) -> None:
        """The front end takes us for its engine; HTTP opens."""

    def front_message(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes]) -> None:
        """ADD, ABORT or UTILITY."""

    def front_fault(self, reason: str) -> None:
        """A message of it can't be understood, and was dropped."""

    def front_lost(self) -> None:
        """Its connection is gone, and all requests with it."""


class Front:
    """The played engine's handshake, input and output sockets."""

    def __init__(self, sockets: Sockets, handshake: Address, events: FrontEvents) -> None:
        self._sockets = sockets
        self._address = handshake
        self._events = events
        self._handshake: zmq.Socket[bytes] | None = None
        self._inputs: list[zmq.Socket[bytes]] = []
        self._outputs: list[zmq.Socket[bytes]] = []
        self._connections: list[Connections] = []
        self._ready = b""

    @property
    def dialling(self) -> bool:
        """Whether we have said HELLO, or more."""
        return self._handshake is not None

    def dial(self, ready_payload: bytes) -> None:
        """Say HELLO; ZeroMQ keeps it until the front end listens. `ready_payload` is what the front
        end will take for its engine's: model length, block size, version."""
        self._ready = ready_payload
        socket = self._handshake = self._sockets.make(zmq.DEALER, identity=wire.IDENTITY)
        self._sockets.watch(socket, self._guarded(self._on_welcome))
        socket.connect(self._address.zmq)
        socket.send(wire.encode(wire.Greeting("HELLO")))

    def send(self, api: int, payload: bytes, frames: Sequence[bytes] = ()) -> None:
        """Send an outputs message to one API server; to one that is gone: nothing."""
        if api < len(self._outputs):
            send(self._outputs[api], [payload, *frames])

    def hang_up(self) -> None:
        """Close everything, so that a new front end can be dialled."""
        for connections in self._connections:
            connections.close()
        for socket in (*self._inputs, *self._outputs):
            self._sockets.forget(socket)
        if self._handshake is not None:
            self._sockets.forget(self._handshake)
        self._handshake, self._inputs, self._outputs, self._connections = None, [], [], []

    def _guarded(self, handler: Handler) -> Handler:
        """What can't be understood is dropped; the other requests go on."""

        def handle() -> None:
            try:
                handler()
            except ProtocolError as exc:
                self._events.front_fault(str(exc))

        return handle

    def _on_welcome(self) -> None:
        socket = self._handshake
        if socket is None:
            return
        for payload, *_ in messages(socket, frames=1):
            addresses = wire.decode_welcome(payload).addresses
            for api, address in enumerate(addresses.inputs):
                self._connect_input(api, address)
            for address in addresses.outputs:
                output = self._sockets.make(zmq.PUSH)
                output.connect(address)
                self._outputs.append(output)
            socket.send(wire.encode(wire.Greeting("READY")))
            self._events.front_attached(len(self._inputs))

    def _connect_input(self, api: int, address: str) -> None:
        socket = self._sockets.make(zmq.DEALER, identity=wire.IDENTITY)
        self._inputs.append(socket)
        on_message = self._guarded(lambda: self._on_message(api, socket))
        self._sockets.watch(socket, on_message, awaited=True)
        self._connections.append(
            Connections(self._sockets, socket, self._on_connections, dialled=True)
        )
        socket.connect(address)
        socket.send(self._ready)

    def _on_message(self, api: int, socket: zmq.Socket[bytes]) -> None:
        for kind, payload, *frames in messages(socket, frames=2):
            self._events.front_message(api, kind, payload, frames)

    def _on_connections(self) -> None:
        if any(connections.lost for connections in self._connections):
            self._events.front_lost()
