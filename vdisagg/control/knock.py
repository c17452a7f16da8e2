"""Whether somebody listens at a TCP address: a connection is tried, and closed at once.

A connection that broke says little of its other end: a machine that reboots, a network that comes back
after a long time, and a reset on our own side all look alike. A process that is gone refuses new ones.
"""

from __future__ import annotations

import errno
import select
import socket
from typing import Final, Literal
from urllib.parse import urlsplit

Answer = Literal["pending", "open", "refused", "unreachable"]

REFUSED: Final = (errno.ECONNREFUSED, errno.ECONNRESET)


class Knock:
    """One try at `address`, in ZeroMQ's form (`tcp://host:port`). It waits for nothing."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._error = self._socket.connect_ex((host, port))

    def answer(self) -> Answer:
        """What has come of it by now. After any answer but "pending" it is closed."""
        if self._error == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if not poll.poll(0):
                return "pending"
            self._error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.close()
        if not self._error:
            return "open"
        return "refused" if self._error in REFUSED else "unreachable"

    def close(self) -> None:
        """Nobody waits for an answer any more."""
        self._socket.close()
