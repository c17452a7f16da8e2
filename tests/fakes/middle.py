"""What stands in the middle of TCP connections on loopback, and can be a black hole that gives back later.

Unlike fakes/relay.py, whose black hole swallows for good: here TCP has repeated it all when it heals.

    with Middle(engine_address) as relay:
        dial(relay.address)
        relay.black_hole()  # no byte, no FIN, no RST: neither side is told anything
        relay.heal()        # what the two said meanwhile comes through, in order, as TCP's repeats would
        relay.reset()       # both sides get an RST; new connections are relayed

A new connection to a black hole is made (the kernel answers for us) and hears nothing. What the two
sides have buffered at the moment of `black_hole` may still arrive.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final

from vdisagg.plan.model import Address

CHUNK: Final = 65536
DIAL_S: Final = 5.0


class Middle:
    """Listens on a port of its own and passes on to `target`. One thread; methods may be called from
    any other, and have had their effect when they return."""

    def __init__(self, target: Address, *, listen: Address | None = None) -> None:
        """`listen`: where (default: a free port on 127.0.0.1). The target may come up later: a
        connection that can't be passed on is closed."""
        self._target = target
        where = ("127.0.0.1", 0) if listen is None else (listen.host, listen.port)
        self._listener = socket.create_server(where)
        self._listener.setblocking(False)
        self.address = Address(where[0], self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._orders: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._pipes: dict[socket.socket, socket.socket] = {}
        """Each open socket, and the one that its bytes go to."""
        self._waiting: dict[socket.socket, bytearray] = {}
        """Bytes that a socket would not take yet."""
        self._ended: set[socket.socket] = set()
        """Sockets that have been read to their end."""
        self._dark = False
        self._closed = False
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="middle", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """How many are open through the relay."""
        return len(self._pipes) // 2

    def black_hole(self) -> None:
        """Let nothing through from now on, and keep all connections open."""
        self._order(lambda: self._set_dark(True))

    def heal(self) -> None:
        """Let everything through again, first what was held up."""
        self._order(lambda: self._set_dark(False))

    def reset(self) -> None:
        """Break all connections with an RST. Whether it is a black hole stays as it is."""
        self._order(self._break_all)

    def close(self) -> None:
        """Break all connections and stop listening."""
        if not self._closed:
            self._order(self._end)
            self._thread.join()

    def __enter__(self) -> Middle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- the thread ---------------------------------------------------------------------------

    def _order(self, what: Callable[[], None]) -> None:
        done = threading.Event()
        self._orders.append((what, done))
        self._wake.send(b"x")
        assert done.wait(60), "the relay's thread is gone"

    def _run(self) -> None:
        while not self._closed:
            for key, events in self._selector.select():
                if key.fileobj is self._woken:
                    self._obey()
                    break  # an order may have closed what else is ready
                if key.fileobj is self._listener:
                    self._accept()
                    continue
                assert isinstance(key.fileobj, socket.socket)
                if events & selectors.EVENT_WRITE and key.fileobj in self._pipes:
                    self._flush(key.fileobj)
                if events & selectors.EVENT_READ and key.fileobj in self._pipes:
                    self._pass_on(key.fileobj)

    def _obey(self) -> None:
        self._woken.recv(CHUNK)
        while self._orders:
            what, done = self._orders.popleft()
            what()
            done.set()

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except BlockingIOError:
            return
        try:
            far = socket.create_connection((self._target.host, self._target.port), DIAL_S)
        except OSError:
            near.close()
            return
        for here, there in ((near, far), (far, near)):
            here.setblocking(False)
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pipes[here] = there
            self._waiting[here] = bytearray()
        self._watch(near)
        self._watch(far)

    def _pass_on(self, here: socket.socket) -> None:
        try:
            chunk = here.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._break(here)
            return
        there = self._pipes[here]
        if not chunk:
            self._ended.add(here)
        self._waiting[there] += chunk
        self._flush(there)

    def _flush(self, to: socket.socket) -> None:
        """Send what waits for this socket, and the end as well where its other side has ended."""
        other = self._pipes[to]
        try:
            if self._waiting[to]:
                sent = to.send(self._waiting[to])
                del self._waiting[to][:sent]
            if not self._waiting[to] and other in self._ended:
                to.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._break(to)
            return
        if {to, other} <= self._ended and not self._waiting[to] and not self._waiting[other]:
            self._break(to, reset=False)
            return
        self._watch(to)
        self._watch(other)

    def _watch(self, one: socket.socket) -> None:
        """Have the selector look at what can happen on a socket now."""
        events = 0
        if not self._dark:
            full = len(self._waiting[self._pipes[one]]) > CHUNK
            events |= selectors.EVENT_READ if one not in self._ended and not full else 0
            events |= selectors.EVENT_WRITE if self._waiting[one] else 0
        with contextlib.suppress(KeyError):
            self._selector.unregister(one)
        if events:
            self._selector.register(one, events)

    def _set_dark(self, dark: bool) -> None:
        self._dark = dark
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._listener)
        if not dark:
            self._selector.register(self._listener, selectors.EVENT_READ)
        for one in self._pipes:
            self._watch(one)

    def _break(self, one: socket.socket, *, reset: bool = True) -> None:
        other = self._pipes[one]
        for each in (one, other):
            with contextlib.suppress(KeyError):
                self._selector.unregister(each)
            if reset:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
            del self._pipes[each]
            del self._waiting[each]
            self._ended.discard(each)

    def _break_all(self) -> None:
        while self._pipes:
            self._break(next(iter(self._pipes)))

    def _end(self) -> None:
        self._break_all()
        self._closed = True
        self._listener.close()
        self._selector.close()
        self._wake.close()
        self._woken.close()
