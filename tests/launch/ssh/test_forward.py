"""Ports of a node that lead here."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from hosts.sshd import Sshd, free_port
from launch.ssh.conftest import Start
from vdisagg.errors import Failure
from vdisagg.launch.ssh.connect import connect
from vdisagg.launch.ssh.connection import Connection
from vdisagg.plan.model import Ssh

Talk = Callable[[socket.socket], None]


@contextmanager
def service(talk: Talk) -> Iterator[int]:
    """Listens here, and talks with each that connects; the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        threads = []

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=answer, args=(client,)))
                threads[-1].start()

        def answer(client: socket.socket) -> None:
            with client:
                talk(client)

        accepting = threading.Thread(target=serve)
        accepting.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for thread in (accepting, *threads):
                thread.join(20)
                assert not thread.is_alive()


def read_all(one: socket.socket) -> bytes:
    return b"".join(iter(lambda: one.recv(65536), b""))


def ask(port: int, text: bytes) -> bytes:
    """Say something, then no more, and listen until the end."""
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        one.sendall(text)
        one.shutdown(socket.SHUT_WR)
        return read_all(one)


def reverse(client: socket.socket) -> None:
    """Answer when all has been said: it takes a half-closed connection to come through."""
    client.sendall(read_all(client)[::-1])


def test_half_closed_connections_come_through(connection: Connection) -> None:
    port = free_port()
    with service(reverse) as here:
        connection.remote_forward(port, here)
        assert ask(port, b"hello") == b"olleh"
        assert ask(port, b"") == b""


def test_a_connection_that_is_half_closed_here_stays_open_the_other_way(
    connection: Connection,
) -> None:
    port = free_port()
    heard = []

    def speak_first(client: socket.socket) -> None:
        client.sendall(b"go on")
        client.shutdown(socket.SHUT_WR)
        heard.append(read_all(client))

    with service(speak_first) as here:
        connection.remote_forward(port, here)
        with socket.create_connection(("127.0.0.1", port), 20) as one:
            assert read_all(one) == b"go on"
            one.sendall(b"and on")
    assert heard == [b"and on"]


def test_several_ports_lead_to_several_places(connection: Connection) -> None:
    one, two = free_port(), free_port()
    with (
        service(lambda c: c.sendall(b"one")) as first,
        service(lambda c: c.sendall(b"two")) as second,
    ):
        connection.remote_forward(one, first)
        connection.remote_forward(two, second)
        assert (ask(one, b""), ask(two, b"")) == (b"one", b"two")


def test_many_connections_at_once_carry_much(connection: Connection) -> None:
    port = free_port()
    with service(reverse) as here, ThreadPoolExecutor(40) as threads:
        connection.remote_forward(port, here)
        texts = [bytes([n]) * 100_000 + b"end" for n in range(40)]
        answers = threads.map(lambda text: ask(port, text), texts)
        assert list(answers) == [text[::-1] for text in texts]
        assert connection.run(("true",), limit_s=20).code == 0


def test_a_port_that_nobody_listens_on_here_is_a_closed_connection(connection: Connection) -> None:
    port = free_port()
    connection.remote_forward(port, free_port())
    assert ask(port, b"") == b""


def test_a_port_that_is_taken_there_is_a_failure(connection: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match=rf"^n1: sshd there does not listen on 127.0.0.1:{port}"):
            connection.remote_forward(port, 1)
    assert connection.run(("true",), limit_s=10).code == 0


def test_a_server_that_forwards_nothing_is_a_failure(start_sshd: Start) -> None:
    sshd = start_sshd(options=("AllowTcpForwarding no",))
    with (
        connect("n1", Ssh("node"), config=sshd.ssh_config("node")) as connection,
        pytest.raises(Failure, match="AllowTcpForwarding"),
    ):
        connection.remote_forward(free_port(), 1)


def test_a_forwarding_that_is_tried_leaves_its_port_to_others(
    sshd: Sshd, connection: Connection
) -> None:
    port = free_port()
    connection.try_forward(port)
    with connect("n1", Ssh("node"), config=sshd.ssh_config("node")) as other:
        other.remote_forward(port, free_port())
        with pytest.raises(Failure, match=f"does not listen on 127.0.0.1:{port} for us"):
            connection.try_forward(port)


def test_closing_the_connection_closes_what_goes_through_it(sshd: Sshd) -> None:
    port = free_port()
    before = set(threading.enumerate())
    with service(lambda c: c.sendall(read_all(c))) as here:
        connection = connect("n1", Ssh("node"), config=sshd.ssh_config("node"))
        connection.remote_forward(port, here)
        with socket.create_connection(("127.0.0.1", port), 20) as one:
            one.sendall(b"hello")
            connection.close()
            one.settimeout(20)
            with contextlib.suppress(
                ConnectionResetError
            ):  # where sshd had not yet sent "hello" on
                assert read_all(one) == b""
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert set(threading.enumerate()) <= before


def test_what_the_node_closes_is_closed_here(connection: Connection) -> None:
    port = free_port()
    seen = threading.Event()

    def listen(client: socket.socket) -> None:
        read_all(client)
        seen.set()

    with service(listen) as here:
        connection.remote_forward(port, here)
        with socket.create_connection(("127.0.0.1", port), 20) as one:
            one.sendall(b"hello")
        assert seen.wait(20)
