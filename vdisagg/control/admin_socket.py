"""The admin API's socket: JSON lines in, JSON lines out. Messages are in cluster/admin.py."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from vdisagg.cluster import admin
from vdisagg.control.sockets import Sockets

MAX_LINE = 65536
SEND_S = 1.0
"""A client that does not take its answer in this time is hung up on: the controller waits for it."""

Answerer = Callable[[admin.Request], object]
"""Takes a request and returns the answer, one of cluster/admin.py's."""


class AdminSocket:
    """Listens beside the cluster's record, mode 0600."""

    def __init__(self, sockets: Sockets, directory: Path, answer: Answerer) -> None:
        self._sockets = sockets
        self._answer = answer
        (directory / admin.SOCKET_NAME).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path, descriptor = admin.socket_address(directory)
        mask = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(mask)
            os.close(descriptor)
        self._listener.listen(64)
        self._open: set[socket.socket] = set()
        sockets.watch(self._listener.fileno(), self._accept, awaited=True)

    def close(self) -> None:
        """Stop listening, and hang up."""
        for connection in list(self._open):
            self._hang_up(connection)
        self._sockets.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client has left again
        connection.setblocking(False)
        self._open.add(connection)
        received = bytearray()
        read = partial(self._read, connection, received)
        self._sockets.watch(connection.fileno(), read, awaited=True)

    def _read(self, connection: socket.socket, received: bytearray) -> None:
        try:
            data = connection.recv(MAX_LINE)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        received += data
        while b"\n" in received and connection in self._open:
            line, _, rest = bytes(received).partition(b"\n")
            received[:] = rest
            self._respond(connection, self._answered(line))
        if connection in self._open and (not data or len(received) > MAX_LINE):
            self._hang_up(connection)

    def _answered(self, line: bytes) -> object:
        try:
            request = msgspec.json.decode(line, type=admin.Request)
        except (msgspec.DecodeError, RecursionError) as exc:
            return admin.Refused(f"that is no request: {exc}")
        return self._answer(request)

    def _respond(self, connection: socket.socket, value: object) -> None:
        try:
            connection.settimeout(SEND_S)
            connection.sendall(msgspec.json.encode(value) + b"\n")
            connection.setblocking(False)
        except OSError:
            self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        self._sockets.forget(connection.fileno())
        connection.close()
