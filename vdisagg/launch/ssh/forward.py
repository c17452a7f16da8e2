"""Ports of a node that lead here: each TCP connection made there is joined to one made here."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import paramiko

CHUNK = 65536
DIAL_LIMIT_S = 10.0
LOOK_S = 1.0  # how often a direction that has nothing to do looks whether the other side is gone
JOIN_S = 2.0

_BROKEN = (OSError, EOFError, paramiko.SSHException)


class Forwards:
    """The forwarded ports of one connection; every TCP connection has two threads, one a direction."""

    def __init__(self) -> None:
        self._local: dict[int, int] = {}
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def add(self, port: int, local_port: int) -> None:
        """From now on, join what comes in on the node's `port` to `local_port` here."""
        self._local[port] = local_port

    def drop(self, port: int) -> None:
        """Undo `add`."""
        self._local.pop(port, None)

    def accept(
        self, channel: paramiko.Channel, origin: tuple[str, int], listener: tuple[str, int]
    ) -> None:
        """Called by the transport's own thread, which must not wait here."""
        self._start(lambda: self._join(channel, self._local.get(listener[1])))

    def close(self) -> None:
        """End all connections and wait for their threads."""
        with self._lock:
            self._closed = True
            sockets, threads = set(self._sockets), set(self._threads)
        for one in sockets:
            _shut(one)
        for thread in threads:
            thread.join(JOIN_S)

    def _start(self, run: Callable[[], None]) -> None:
        def ran() -> None:
            try:
                run()
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=ran, name="ssh forward", daemon=True)
        with self._lock:
            if self._closed:
                return
            self._threads.add(thread)
            thread.start()

    def _join(self, channel: paramiko.Channel, local_port: int | None) -> None:
        try:
            if local_port is None:
                return
            with socket.create_connection(("127.0.0.1", local_port), DIAL_LIMIT_S) as here:
                here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                here.settimeout(LOOK_S)
                channel.settimeout(None)
                with self._lock:
                    if self._closed:
                        return
                    self._sockets.add(here)
                try:
                    outward = threading.Thread(
                        target=_outward, args=(here, channel), name="ssh forward", daemon=True
                    )
                    outward.start()
                    _inward(channel, here)
                    outward.join()
                finally:
                    with self._lock:
                        self._sockets.discard(here)
        except OSError:
            pass  # nobody listens here: the other side sees its connection closed
        finally:
            with contextlib.suppress(*_BROKEN):
                channel.close()


def _inward(channel: paramiko.Channel, here: socket.socket) -> None:
    """From the node to here, until the node has no more to say."""
    try:
        while data := channel.recv(CHUNK):
            _send_all(here, data, channel)
        if not channel.closed:
            here.shutdown(socket.SHUT_WR)
            return
    except _BROKEN:
        pass
    _shut(here)
    with contextlib.suppress(*_BROKEN):
        channel.close()


def _send_all(here: socket.socket, data: bytes, channel: paramiko.Channel) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[here.send(view) :]
        except TimeoutError:
            if channel.closed:
                raise


def _outward(here: socket.socket, channel: paramiko.Channel) -> None:
    """From here to the node, until we have no more to say, or nobody is left to hear it."""
    try:
        while True:
            try:
                data = here.recv(CHUNK)
            except TimeoutError:
                if channel.closed:
                    return
                continue
            if not data:
                break
            channel.sendall(data)
        channel.shutdown_write()
    except _BROKEN:
        _shut(here)
        with contextlib.suppress(*_BROKEN):
            channel.close()


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
