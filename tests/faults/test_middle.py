"""The middle that stands in for a network: what it lets through, and what neither side hears of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from fakes.middle import Middle
from vdisagg.plan.model import Address


@pytest.fixture
def echo() -> Iterator[Address]:
    """Sends back whatever it gets, on each connection, until its end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while chunk := connection.recv(65536):
                    connection.sendall(chunk)
            except ConnectionError:
                return

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    yield Address("127.0.0.1", listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def dial(relay: Middle) -> socket.socket:
    return socket.create_connection((relay.address.host, relay.address.port), 5)


def read(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        chunk = connection.recv(count - len(found))
        assert chunk, "it ended"
        found += chunk
    return found


def test_bytes_pass_in_order_however_many(echo: Address) -> None:
    sent = bytes(range(256)) * 8000
    with Middle(echo) as relay, dial(relay) as line:
        threading.Thread(target=line.sendall, args=(sent,), daemon=True).start()
        assert read(line, len(sent)) == sent
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b"", "the end passes as well"


def test_a_black_hole_tells_neither_side_anything_and_heals_without_loss(echo: Address) -> None:
    with Middle(echo) as relay, dial(relay) as line:
        line.sendall(b"one")
        assert read(line, 3) == b"one"
        relay.black_hole()
        line.sendall(b"two")
        line.settimeout(0.1)
        with pytest.raises(TimeoutError):
            line.recv(1)
        with dial(relay) as late:
            late.sendall(b"late")
            late.settimeout(0.1)
            with pytest.raises(TimeoutError):
                late.recv(1)
            relay.heal()
            for each, said in ((line, b"two"), (late, b"late")):
                each.settimeout(5)
                assert read(each, len(said)) == said
        assert relay.connections >= 1


def test_a_reset_breaks_what_is_open_and_the_next_connection_passes(echo: Address) -> None:
    with Middle(echo) as relay, dial(relay) as line:
        line.sendall(b"x")
        assert read(line, 1) == b"x"
        relay.reset()
        with pytest.raises(ConnectionResetError):
            line.recv(1)
        with dial(relay) as again:
            again.sendall(b"y")
            assert read(again, 1) == b"y"


def test_without_a_target_a_connection_is_closed(echo: Address) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        nobody = Address("127.0.0.1", holder.getsockname()[1])
    with Middle(nobody) as relay, dial(relay) as line:
        assert line.recv(1) == b""
