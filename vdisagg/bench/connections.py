"""Connections to one server, each carrying one request at a time and kept for the next one.

Made for thousands of streams in one process: what is read goes from the socket to whom it concerns in
one call, with the instant of reading, and no task is woken before the response is whole. A general
HTTP client spends several times as much on each chunk; benchmarks/client.py measures it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from vdisagg import __version__
from vdisagg.bench.http1 import Broken, Response

# A front end closes idle connections (vLLM after 5 s); we do so before it, so that no request is
# sent into a connection that is just being closed.
KEEP_ALIVE_S = 2.0

READ_BYTES = 65_536

Take = Callable[[int, bytes, float], None]
"""Status, a piece of the body, when it was read (the loop's clock)."""


class CannotConnect(OSError):
    """No connection came about."""


class ConnectionLost(OSError):
    """It broke, or was closed, or what came was no HTTP, before the response was whole."""


class Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, buffer: memoryview) -> None:
        self._loop = asyncio.get_running_loop()
        # All connections share it: what is read is taken out of it in the very next call.
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._response = Response()
        self._take: Take | None = None
        self._done: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self.closed = False

    async def exchange(self, request: bytes, take: Take) -> tuple[int, bool]:
        """Send a request, whole, and hand the response's pieces to `take`.

        The status, and whether the connection can carry another request. Raises ConnectionLost.
        """
        if self._transport is None:
            raise ConnectionLost("the server closed the connection")
        self._response = Response()
        self._take = take
        self._done = self._loop.create_future()
        try:
            self._transport.write(request)
            await self._done
        finally:
            self._take = self._done = None
        return self._response.status, self._response.reusable and not self.closed

    def close(self) -> None:
        """At once, whatever is under way."""
        self.closed = True
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        at = self._loop.time()
        if self._take is None:  # nothing was asked for
            self.close()
            return
        response = self._response
        try:
            piece = response.feed(bytes(self._buffer[:nbytes]))
        except Broken as exc:
            self._fail(ConnectionLost(str(exc)))
            return
        if piece:
            self._take(response.status, piece, at)
        if response.whole and self._done and not self._done.done():
            self._done.set_result(None)

    def eof_received(self) -> None:
        """The transport closes itself then, and says so to `connection_lost`."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = None  # no cycle for the collector, which rests while a load runs
        if self._done is None or self._done.done():
            return
        try:
            if exc:
                raise Broken(f"{type(exc).__name__}: {exc}")
            self._response.closed()
            self._done.set_result(None)
        except Broken as broken:
            self._fail(ConnectionLost(str(broken)))

    def _fail(self, error: ConnectionLost) -> None:
        if self._done and not self._done.done():
            self._done.set_exception(error)
        self.close()


class Connections:
    """As many as are needed at once to `url` (its path goes before each request's)."""

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        """`timeout_s`: for one request, from connecting to the end of its response."""
        self.timeout_s = timeout_s
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        fields = {
            "Host": parts.netloc,
            "User-Agent": f"vdisagg/{__version__}",
            "Accept": "*/*",
            "Content-Type": "application/json",
        }
        if api_key:
            fields["Authorization"] = f"Bearer {api_key}"
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._addresses = [self._host]
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._buffer = memoryview(bytearray(READ_BYTES))

    async def resolve(self) -> None:
        """Ask for the host's addresses once, not for each connection; failing is left to those."""
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(self._host)
            return
        with contextlib.suppress(OSError):
            found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port)
            self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def post(self, path: str, body: bytes, take: Take, *, request_id: str = "") -> int:
        """One request; the response's status. Raises CannotConnect, ConnectionLost, TimeoutError."""
        known = f"X-Request-Id: {request_id}\r\n" if request_id else ""
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._fields}{known}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        async with asyncio.timeout(self.timeout_s):
            connection = await self._connection()
            reusable = False
            try:
                status, reusable = await connection.exchange(head.encode() + body, take)
            finally:
                if reusable:
                    connection.idle_since = asyncio.get_running_loop().time()
                    self._idle.append(connection)
                else:
                    self._all.discard(connection)
                    connection.close()
        return status

    def close(self) -> None:
        """All of them, at once."""
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle.clear()

    async def _connection(self) -> Connection:
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()  # the one that was used last
            if not connection.closed and connection.idle_since > oldest:
                return connection
            self._all.discard(connection)
            connection.close()
        loop = asyncio.get_running_loop()
        for address in list(self._addresses):
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(self._buffer),
                    address,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
            except OSError as exc:
                failure = exc
                continue
            if self._addresses[0] != address:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
            self._all.add(connection)
            return connection
        raise CannotConnect(f"{self._host}:{self._port}: {_why(failure)}")


def _why(error: OSError) -> str:
    if isinstance(error, (ssl.SSLError, socket.gaierror)) or not error.errno:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)  # asyncio's own text is the call that failed
