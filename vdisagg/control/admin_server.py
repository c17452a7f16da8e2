"""The admin API's socket: JSON lines in, JSON lines out. Messages are in cluster/admin.py."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from vdisagg.cluster import admin
from vdisagg.control.sockets import Sockets

MAX_LINE = 65536
Respond = Callable[[object], None]
Answerer = Callable[[str, Respond], None]


class AdminServer:
    """Listens beside the cluster's record, mode 0600; answers when the controller has the answer."""

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
        self._open: dict[int, socket.socket] = {}
        sockets.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening, and hang up."""
        for number, connection in list(self._open.items()):
            self._close(number, connection)
        self._sockets.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        number = connection.fileno()
        self._open[number] = connection
        received = bytearray()
        self._sockets.watch(number, lambda: self._read(number, connection, received))

    def _read(self, number: int, connection: socket.socket, received: bytearray) -> None:
        try:
            data = connection.recv(MAX_LINE)
        except ConnectionError:
            data = b""
        received += data
        if b"\n" in received:
            line, _, rest = bytes(received).partition(b"\n")
            received[:] = rest
            self._answer(_op(line), lambda value: self._respond(number, connection, value))
        elif not data or len(received) > MAX_LINE:
            self._close(number, connection)

    def _respond(self, number: int, connection: socket.socket, value: object) -> None:
        if self._open.get(number) is not connection:
            return  # it has hung up, and the number may be another's by now
        try:
            connection.setblocking(True)
            connection.settimeout(1.0)
            connection.sendall(msgspec.json.encode(value) + b"\n")
            connection.setblocking(False)
        except OSError:
            self._close(number, connection)

    def _close(self, number: int, connection: socket.socket) -> None:
        if self._open.pop(number, None) is not None:
            self._sockets.forget(number)
            connection.close()


def _op(line: bytes) -> str:
    """The operation that a request names; empty for one that is no request."""
    try:
        request: Any = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return ""
    return str(request.get("op", "")) if isinstance(request, dict) else ""
