"""The controller's one ZeroMQ context, how its sockets are made, and reading them until they are dry."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from vdisagg.errors import PlanConflict, ProtocolError
from vdisagg.plan.model import Address

BURST: Final = 256
"""Messages read from one socket before the others have their turn."""

LOOK_S: Final = 0.1
"""How often the sources are looked at that nobody waits for, and the longest turn."""

COPY_BELOW: Final = 16384
"""Bytes. Frames below are copied into ZeroMQ's memory: that is cheaper than sharing them."""

EVENTS, POLLIN, RCVMORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
NOBLOCK, SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""As plain integers: arithmetic on pyzmq's enumerations shows in a profile."""

Handler = Callable[[], None]


class Sockets:
    """Makes sockets, and calls their handlers when they can be read.

    A source is *awaited* (read as soon as it can be) or looked at every LOOK_S only. Each wake-up costs
    more than what there is to do for most messages, and engines talk unasked: one whose blocks have
    not been read yet reports statistics over a hundred times a second.
    """

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._all = zmq.Poller()
        self._awaited = zmq.Poller()
        self._next_look = 0.0
        self._handlers: dict[object, Handler] = {}
        self._made: set[zmq.Socket[bytes]] = set()

    def make(self, kind: int, *, identity: bytes | None = None) -> zmq.Socket[bytes]:
        """A socket that neither drops nor lingers: bounds are the dispatcher's business."""
        socket = self._context.socket(kind)
        self._made.add(socket)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        if identity is not None:
            socket.setsockopt(zmq.IDENTITY, identity)
        if kind == zmq.ROUTER:
            # A send to a peer that is not there is an error, and a restarted engine takes over.
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        return socket

    def bound(self, kind: int, address: Address, purpose: str) -> zmq.Socket[bytes]:
        """Raises PlanConflict when the address is taken or not this machine's.

        `purpose` is also the domain under which admission.py hears of connections.
        """
        socket = self.make(kind)
        socket.setsockopt(zmq.ZAP_DOMAIN, purpose.encode())
        try:
            socket.bind(address.zmq)
        except zmq.ZMQError as exc:
            self.forget(socket)
            raise PlanConflict(f"{purpose}: cannot bind {address}: {exc}") from exc
        return socket

    def watch(
        self, source: zmq.Socket[bytes] | int, handler: Handler, *, awaited: bool = False
    ) -> None:
        """Call `handler` when `source` (a socket or a file descriptor) can be read."""
        self._handlers[source] = handler
        self._all.register(source, zmq.POLLIN)
        if awaited:
            self.await_(source)

    def await_(self, source: zmq.Socket[bytes] | int) -> None:
        """Something is due on a watched source: read it as soon as it comes."""
        if source not in self._awaited:
            self._awaited.register(source, zmq.POLLIN)

    def rest(self, source: zmq.Socket[bytes] | int) -> None:
        """Nothing is due on a watched source any more."""
        if source in self._awaited:
            self._awaited.unregister(source)

    def forget(self, source: zmq.Socket[bytes] | int) -> None:
        """Stop watching; a socket is closed as well."""
        if self._handlers.pop(source, None) is not None:
            self._all.unregister(source)
            self.rest(source)
        if not isinstance(source, int):
            source.close()
            self._made.discard(source)

    def turn(self) -> None:
        """Wait for input, at most LOOK_S, and let each readable source's handler run once."""
        now = time.monotonic()
        if now < self._next_look:
            readable = self._awaited.poll(math.ceil((self._next_look - now) * 1000))
        else:
            self._next_look = now + LOOK_S
            readable = self._all.poll(0)
        for source, _ in readable:
            handler = self._handlers.get(source)
            if handler is not None:  # an earlier handler of this turn may have closed it
                handler()

    def close(self) -> None:
        """Close everything."""
        for source in (*self._made, *self._handlers):
            if isinstance(source, zmq.Socket):
                source.close()
        self._context.term()


def send(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> None:
    """Queue one message. Raises zmq.ZMQError where the socket can't take it."""
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        more = SNDMORE if number < last else 0
        socket.send(frame, NOBLOCK | more, copy=len(frame) < COPY_BELOW)


def messages(socket: zmq.Socket[bytes], *, frames: int) -> Iterator[list[bytes]]:
    """What lies ready on a socket, at most BURST messages.

    Raises ProtocolError for one with fewer than `frames` frames.
    """
    for _ in range(BURST):
        # Asking first is cheaper than the exception that ends each burst otherwise.
        if not int(socket.getsockopt(EVENTS)) & POLLIN:
            return
        message = [socket.recv(NOBLOCK)]
        while socket.getsockopt(RCVMORE):
            message.append(socket.recv(NOBLOCK))
        if len(message) < frames:
            raise ProtocolError(f"a message of {len(message)} frames, where {frames} are due")
        yield message


class Connections:
    """Counts the connections of a socket through its monitor.

    Where we dial, a connection counts when the peer has spoken ZeroMQ: the front end's parent
    listens for its API servers long before they are there to answer, and ZeroMQ gives such
    connections up after 30 s and tries again.
    """

    def __init__(
        self, sockets: Sockets, socket: zmq.Socket[bytes], changed: Handler, *, dialled: bool
    ) -> None:
        self._sockets = sockets
        self._socket = socket
        self._changed = changed
        made = zmq.EVENT_HANDSHAKE_SUCCEEDED if dialled else zmq.EVENT_ACCEPTED
        self._monitor = socket.get_monitor_socket(made | zmq.EVENT_DISCONNECTED)
        self.count = 0
        self.lost = False
        """Whether the last connection has gone since the last call of `changed`."""
        sockets.watch(self._monitor, self._read)

    def _read(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event != zmq.EVENT_DISCONNECTED:
                self.count += 1
            elif self.count > 0:
                self.count -= 1
                self.lost = self.lost or self.count == 0
        self._changed()
        self.lost = False

    def close(self) -> None:
        """Stop counting; the monitored socket stays open."""
        self._socket.disable_monitor()
        self._sockets.forget(self._monitor)
