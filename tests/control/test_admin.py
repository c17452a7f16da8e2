"""The admin socket over a real Unix socket, and what it says when the question is odd."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fakes.cluster import make_plan
from vdisagg.cluster import admin
from vdisagg.control.admin_socket import MAX_LINE
from vdisagg.control.controller import Controller
from vdisagg.errors import ControllerGone


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A state directory whose path is longer than a Unix socket's address may be."""
    deep = tmp_path.joinpath(*["a-directory-far-down"] * 8)
    deep.mkdir(parents=True)
    assert len(str(deep)) > 108
    return deep


@contextlib.contextmanager
def running(directory: Path) -> Iterator[None]:
    """A controller whose engines never come."""
    plan = make_plan(directory, 1, 1, interval_s=3600.0)
    controller = Controller(plan, directory, rng=random.Random(0))
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    yield
    controller.stop()
    thread.join()


@pytest.fixture
def controller(directory: Path) -> Iterator[None]:
    """It runs for the whole of a test."""
    with running(directory):
        yield


@pytest.fixture
def connect(controller: None, directory: Path) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections to the controller's admin socket."""
    opened: list[socket.socket] = []

    def connection() -> socket.socket:
        path, descriptor = admin.socket_address(directory)
        opened.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        opened[-1].settimeout(60.0)
        try:
            opened[-1].connect(path)
        finally:
            os.close(descriptor)
        return opened[-1]

    yield connection
    for each in opened:
        each.close()


Connect = Callable[[], socket.socket]


def answers(connection: socket.socket, count: int) -> list[dict[str, object]]:
    """The next answers on a connection."""
    received = b""
    while received.count(b"\n") < count:
        data = connection.recv(65536)
        assert data, "the controller has hung up"
        received += data
    return [msgspec.json.decode(line) for line in received.splitlines()]


def line(op: object) -> bytes:
    """A request."""
    return msgspec.json.encode({"op": op}) + b"\n"


def test_the_socket_works_in_a_deep_directory_and_is_its_owners_alone(
    controller: None, directory: Path
) -> None:
    status = admin.ask(directory, admin.ControllerStatus, "status")
    assert (status.pid, status.front_end) == (os.getpid(), "waiting")
    assert [(i.name, i.state) for i in status.instances] == [("p0", "planned"), ("d0", "planned")]
    mode = (directory / admin.SOCKET_NAME).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_a_socket_that_a_killed_controller_left_is_replaced(directory: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    path, descriptor = admin.socket_address(directory)
    stale.bind(path)
    os.close(descriptor)
    stale.close()
    with pytest.raises(ControllerGone):
        admin.ask(directory, admin.ControllerStatus, "status")
    with running(directory):
        assert admin.ask(directory, admin.ControllerStatus, "status").ok


@pytest.mark.parametrize("op", admin.OPERATIONS)
def test_every_operation_that_is_offered_is_answered(connect: Connect, op: str) -> None:
    connection = connect()
    connection.sendall(line(op))
    assert answers(connection, 1)[0]["ok"] is True


def test_an_unknown_operation_is_refused_with_the_known_ones(
    connect: Connect, directory: Path
) -> None:
    connection = connect()
    connection.sendall(line("dance"))
    assert answers(connection, 1) == [
        {
            "ok": False,
            "error": "unknown operation 'dance'; known: " + ", ".join(admin.OPERATIONS),
        }
    ]
    with pytest.raises(ControllerGone, match="'dance'"):
        admin.ask(directory, admin.Done, "dance")


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"\xff\xfe", b"7", b"[]", b"null", b'"status"', b'{"op": {}}', b"[" * 60_000],
    ids=["empty", "half", "bytes", "number", "list", "null", "text", "odd op", "nesting"],
)
def test_a_garbage_line_is_refused_and_the_connection_lives(
    connect: Connect, garbage: bytes
) -> None:
    connection = connect()
    connection.sendall(garbage + b"\n")
    (refused,) = answers(connection, 1)
    assert refused["ok"] is False
    connection.sendall(line("probe"))
    assert answers(connection, 1) == [{"ok": True}]


@pytest.mark.parametrize("parameters", [{"after": "x"}, {"after": 0.5}, {"op": 7}])
def test_odd_parameters_are_refused_by_name(
    connect: Connect, parameters: dict[str, object]
) -> None:
    connection = connect()
    connection.sendall(msgspec.json.encode({"op": "events", **parameters}) + b"\n")
    (refused,) = answers(connection, 1)
    assert refused["ok"] is False
    assert next(iter(parameters)) in str(refused["error"])


def test_parameters_that_are_not_known_are_ignored(connect: Connect) -> None:
    connection = connect()
    connection.sendall(msgspec.json.encode({"op": "probe", "later": [1]}) + b"\n")
    assert answers(connection, 1) == [{"ok": True}]


def test_half_a_line_waits_for_the_rest(connect: Connect) -> None:
    slow, quick = connect(), connect()
    slow.sendall(line("probe")[:5])
    quick.sendall(line("probe"))
    assert answers(quick, 1) == [{"ok": True}], "meanwhile others are served"
    slow.sendall(line("probe")[5:])
    assert answers(slow, 1) == [{"ok": True}]


def test_two_requests_on_one_connection_are_answered_in_order(connect: Connect) -> None:
    connection = connect()
    for op in ("events", "probe"):
        connection.sendall(line(op))
        assert answers(connection, 1)[0]["ok"] is True
    connection.sendall(line("events") + line("probe") + line("dance"))
    events, probe, dance = answers(connection, 3)
    assert "events" in events
    assert (probe, dance["ok"]) == ({"ok": True}, False)


def test_a_request_whose_sender_has_closed_its_half_is_answered(connect: Connect) -> None:
    connection = connect()
    connection.sendall(line("probe") + line("probe"))
    connection.shutdown(socket.SHUT_WR)
    assert answers(connection, 2) == [{"ok": True}, {"ok": True}]
    assert connection.recv(1) == b"", "and hung up on"


def test_clients_that_hang_up_harm_nobody(connect: Connect, directory: Path) -> None:
    for sent in (b"", line("status")[:5], line("status"), line("status") * 50):
        for _ in range(5):
            connection = connect()
            connection.sendall(sent)
            connection.close()
    assert admin.ask(directory, admin.Done, "probe").ok


def test_a_line_without_end_is_hung_up_on(connect: Connect, directory: Path) -> None:
    connection = connect()
    connection.sendall(b"x" * MAX_LINE)
    connection.sendall(b"x")
    assert connection.recv(1) == b""
    assert admin.ask(directory, admin.Done, "probe").ok


def test_when_the_controller_has_ended_asking_says_so(directory: Path) -> None:
    with running(directory):
        admin.ask(directory, admin.Done, "probe")
    with pytest.raises(ControllerGone, match="does not answer"):
        admin.ask(directory, admin.Done, "probe")
