"""The controller's one ZeroMQ context, how its sockets are made, and reading them until they are dry."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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

HIGH_WATER: Final = 20_000
"""Messages that may wait at an engine's socket, each way; a send to one that is full fails. Far more
than a living engine ever leaves unread, and an end to what piles up for one that is not."""

PING_S: Final = 1.0
"""The longest time between two pings on a bound socket."""

TTL_UNIT_S: Final = 0.1
MOST_TTL_S: Final = 6553.0
"""ZMTP sends the time to live in these units, in 16 bits."""

EVENTS: Final = zmq.EVENTS
POLLIN, NOBLOCK, SNDMORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""As plain integers: arithmetic on pyzmq's enumerations shows in a profile. An option is looked up among
them in any case, faster when it is one."""

BEGUN: Final = int(zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED)
MADE: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
ENDED: Final = int(zmq.EVENT_DISCONNECTED)
"""What a socket's monitor tells of a connection; the first and the last with its file descriptor."""

Handler = Callable[[], None]


CONNECT_S: Final = 2.0
"""For one try to reach a peer that we dial; the next one follows at once."""


class Sockets:
    """Makes sockets, and calls their handlers when they can be read.

    A source is *awaited* (read as soon as it can be) or looked at every LOOK_S only. Each wake-up costs
    more than what there is to do for most messages, and engines talk unasked: one whose blocks have
    not been read yet reports statistics over a hundred times a second.

    Sockets are awaited through the file descriptors that ZeroMQ gives for that: one system call, where its
    own poll makes several for each socket. Such a descriptor tells once that there is news for its socket.
    So a socket stays among the `_unread` until it has been read dry; and the look at all sources, which asks
    ZeroMQ itself, would find what were missed.
    """

    def __init__(self, *, heartbeat_s: float | None = None) -> None:
        """`heartbeat_s`: within this time both sides of a bound socket notice that the other has
        stopped, or that nothing comes through any more; None: they need not."""
        self._heartbeat_s = heartbeat_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._all = zmq.Poller()
        self._awaited: dict[zmq.Socket[bytes] | int, int] = {}
        """With their descriptors."""
        self._by_descriptor: dict[int, zmq.Socket[bytes] | int] = {}
        self._news = select.poll()
        self._unread: set[zmq.Socket[bytes] | int] = set()
        """Awaited sockets that have, perhaps, not been read dry."""
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
        # Else a try that began in a black hole goes on in the kernel for minutes after it has healed.
        socket.setsockopt(zmq.CONNECT_TIMEOUT, round(1000 * CONNECT_S))
        if identity is not None:
            socket.setsockopt(zmq.IDENTITY, identity)
        if kind == zmq.ROUTER:
            # A send to a peer that is not there is an error, and a restarted engine takes over.
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        return socket

    def bindable(self, kind: int, purpose: str) -> zmq.Socket[bytes]:
        """A socket for an engine to dial, with bounded queues and heartbeats; see `bind`.

        `purpose` is also the domain under which admission.py hears of connections.
        """
        socket = self.make(kind)
        socket.setsockopt(zmq.ZAP_DOMAIN, purpose.encode())
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        if self._heartbeat_s is not None:
            # The peer has its own watch from what a ping says: stock engines set no heartbeat, and
            # would otherwise never know of a path that is gone, and never dial again, having nothing
            # to send. Any message ends that watch and the next ping renews it: so ping often.
            limit_s = min(self._heartbeat_s, MOST_TTL_S)
            every_s = min(limit_s / 6, PING_S)
            units = math.ceil(limit_s * 2 / 3 / TTL_UNIT_S)
            socket.setsockopt(zmq.HEARTBEAT_IVL, math.ceil(1000 * every_s))
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, math.ceil(1000 * limit_s / 2))
            socket.setsockopt(zmq.HEARTBEAT_TTL, round(1000 * TTL_UNIT_S) * units)
        return socket

    def bind(self, socket: zmq.Socket[bytes], address: Address, purpose: str) -> None:
        """Raises PlanConflict, and closes the socket, when the address is taken or not this machine's."""
        try:
            socket.bind(address.zmq)
        except zmq.ZMQError as exc:
            self.forget(socket)
            raise PlanConflict(f"{purpose}: cannot bind {address}: {exc}") from exc

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
        if source in self._awaited:
            return
        if isinstance(source, int):
            descriptor = source
        else:
            descriptor = int(source.get(zmq.FD))
            if int(source.get(EVENTS)) & POLLIN:  # of which the descriptor may have told before
                self._unread.add(source)
        self._awaited[source] = descriptor
        self._by_descriptor[descriptor] = source
        self._news.register(descriptor, select.POLLIN)

    def rest(self, source: zmq.Socket[bytes] | int) -> None:
        """Nothing is due on a watched source any more."""
        descriptor = self._awaited.pop(source, None)
        if descriptor is not None:
            self._news.unregister(descriptor)
            del self._by_descriptor[descriptor]
            self._unread.discard(source)

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
        self.handle(self.wait())

    def wait(self) -> Iterable[zmq.Socket[bytes] | int]:
        """Wait for input, at most LOOK_S: the sources that may be readable."""
        wait_s = self._next_look - time.monotonic()
        if wait_s > 0:
            told = self._news.poll(0 if self._unread else math.ceil(wait_s * 1000))
            if told or self._unread:
                return {*(self._by_descriptor[news] for news, _ in told), *self._unread}
        self._next_look = time.monotonic() + LOOK_S
        return [source for source, _ in self._all.poll(0)]

    def handle(self, readable: Iterable[zmq.Socket[bytes] | int]) -> None:
        """Let the handler of each of these sources run once."""
        for source in readable:
            handler = self._handlers.get(source)
            if handler is not None:  # an earlier handler of this turn may have closed it
                handler()

    def messages(self, socket: zmq.Socket[bytes], *, frames: int) -> Iterator[list[bytes]]:
        """What lies ready on a socket, at most BURST messages.

        Raises ProtocolError for one with fewer than `frames` frames.
        """
        if socket in self._awaited:
            self._unread.add(socket)
        try:
            for _ in range(BURST):
                frame = socket.recv(NOBLOCK, copy=False)
                message = [frame.bytes]
                while frame.more:
                    frame = socket.recv(NOBLOCK, copy=False)
                    message.append(frame.bytes)
                if len(message) < frames:
                    what = f"a message of {len(message)} frames"
                    raise ProtocolError(f"{what}, where {frames} are due")
                yield message
                # Asking is cheaper than the exception of a socket that has been read dry.
                if not int(socket.get(EVENTS)) & POLLIN:
                    break
            else:
                return
        except zmq.Again:
            pass
        self._unread.discard(socket)

    def close(self) -> None:
        """Close everything."""
        for source in (*self._made, *self._handlers):
            if isinstance(source, zmq.Socket):
                source.close()
        self._context.term()


def send(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> None:
    """Queue one message. Raises zmq.ZMQError where the socket can't take it."""
    *first, last = frames
    for frame in first:
        socket.send(frame, NOBLOCK | SNDMORE, len(frame) < COPY_BELOW)
    socket.send(last, NOBLOCK, len(last) < COPY_BELOW)


class Connections:
    """Counts the connections of a socket through its monitor.

    A connection counts when the peer has spoken ZeroMQ and was let in: anybody may knock at a port, and
    the front end's parent listens for its API servers long before they are there to answer.

    A bound socket has one peer here. When that one connects again, its connection before is void, though
    it may take a while to end: what was sent into it is lost.
    """

    def __init__(
        self, sockets: Sockets, socket: zmq.Socket[bytes], changed: Handler, *, dialled: bool
    ) -> None:
        """Make it before the socket is bound or connected, or the first connections are missed."""
        self._sockets = sockets
        self._socket = socket
        self._changed = changed
        self._dialled = dialled
        self._begun: list[int] = []
        self._made: set[int] = set()
        self._void: set[int] = set()
        self._monitor = socket.get_monitor_socket(BEGUN | MADE | ENDED)
        self.lost = False
        """Whether the last connection has gone, or was given up, since the last call of `changed`."""
        sockets.watch(self._monitor, self._read)

    @property
    def count(self) -> int:
        """Connections that are there now."""
        return len(self._made)

    def renew(self) -> None:
        """Another peer is about to connect: what is still there of the one before does not count."""
        self._void |= self._made
        self._made.clear()

    def _read(self) -> None:
        while self._monitor.poll(0):
            told = recv_monitor_message(self._monitor)
            event, descriptor = int(told["event"]), int(told["value"])
            if event & BEGUN:
                self._begun.append(descriptor)
            elif event == MADE and self._begun:
                # It does not say which. The latest: an engine does not take long, a stranger may.
                self._make(self._begun.pop())
            elif event == ENDED:
                self._end(descriptor)
        self._changed()
        self.lost = False

    def look(self) -> None:
        """Take news in now, if there are any, rather than when their turn comes."""
        if int(self._monitor.get(EVENTS)) & POLLIN:
            self._read()

    def _make(self, descriptor: int) -> None:
        if self._made and not self._dialled:
            self.renew()
            self.lost = True
        self._made.add(descriptor)

    def _end(self, descriptor: int) -> None:
        if descriptor in self._begun:
            self._begun.remove(descriptor)
        self._void.discard(descriptor)
        if descriptor in self._made:
            self._made.discard(descriptor)
            self.lost = self.lost or not self._made

    def close(self) -> None:
        """Stop counting; the monitored socket stays open."""
        self._socket.disable_monitor()
        self._sockets.forget(self._monitor)
