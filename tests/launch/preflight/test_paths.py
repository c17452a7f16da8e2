"""Both ends of a path with real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fakes.two_nodes import N1, free_block
from vdisagg.launch.preflight.node import paths

Answer = Future[dict[str, Any]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def listen(pool: ThreadPoolExecutor, *addresses: tuple[str, int, int]) -> Answer:
    job = {"nonce": "n", "addresses": [list(a) for a in addresses], "hold_s": 60.0}
    return pool.submit(paths.listen, job)


def dial(
    name: str, *targets: tuple[str, int], patience_s: float = 20.0, limit_s: float = 20.0
) -> list[str]:
    job = {"nonce": "n", "name": name, "targets": [list(t) for t in targets]}
    answer = paths.dial({**job, "limit_s": limit_s, "patience_s": patience_s})
    return [fault for _, _, fault in answer["addresses"]]


def test_open_paths_are_told_and_the_listener_ends_with_its_last_caller(
    pool: ThreadPoolExecutor,
) -> None:
    first = free_block(2)
    listener = listen(pool, (N1, first, 2), (N1, first + 1, 1))
    assert dial("n2", (N1, first), (N1, first + 1)) == ["", ""]
    assert not listener.done()
    assert dial("n3", (N1, first)) == [""]
    assert listener.result(20)["addresses"] == [[N1, first, ""], [N1, first + 1, ""]]


def test_a_listener_that_comes_later_is_waited_for(pool: ThreadPoolExecutor) -> None:
    port = free_block(1)
    caller = pool.submit(dial, "n2", (N1, port))
    listen(pool, (N1, port, 1))
    assert caller.result(20) == [""]


def test_d10_ipv6_is_dialled_too(pool: ThreadPoolExecutor) -> None:
    port = free_block(1)
    try:
        socket.create_server(("::1", port), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    listener = listen(pool, ("::1", port, 1))
    assert dial("n2", ("::1", port)) == [""]
    assert listener.result(20)["addresses"] == [["::1", port, ""]]


def test_a_refused_call_is_told() -> None:
    assert dial("n2", (N1, free_block(1)), patience_s=0.0) == ["connection refused"]


def test_a_call_that_nobody_takes_times_out() -> None:
    with socket.socket() as full:
        full.bind((N1, 0))
        full.listen(0)
        target = full.getsockname()
        with socket.create_connection(target), socket.socket() as second:
            second.setblocking(False)  # a full queue: the kernel drops what comes after
            second.connect_ex(target)
            assert dial("n2", target, limit_s=0.5) == ["timed out"]


def test_a_stranger_on_the_port_is_not_taken_for_the_listener() -> None:
    with socket.create_server((N1, 0)) as stranger:
        threading.Thread(target=answer_once, args=(stranger, b"HTTP/1.1 400\r\n")).start()
        assert dial("n2", stranger.getsockname()) == ["something else answers there"]


def test_a_stranger_who_says_nothing_is_one_too() -> None:
    with socket.create_server((N1, 0)) as silent:
        assert dial("n2", silent.getsockname(), limit_s=0.5) == ["something else answers there"]


def answer_once(listener: socket.socket, words: bytes) -> None:
    with listener.accept()[0] as connection:
        connection.recv(100)
        connection.sendall(words)


def test_a_listener_answers_no_stranger_and_waits_on(pool: ThreadPoolExecutor) -> None:
    port = free_block(1)
    listener = listen(pool, (N1, port, 1))
    assert dial("n2", (N1, port)) == [""]
    listener.result(20)
    listener = listen(pool, (N1, port, 2))
    assert dial("n2", (N1, port)) == [""]
    with socket.create_connection((N1, port)) as stranger:
        stranger.sendall(b"other n3\n")
        assert stranger.recv(100) == b""
    assert not listener.done()
    assert dial(paths.BYE, (N1, port)) == [""]
    assert listener.result(20)["addresses"] == [[N1, port, ""]]


def test_a_port_that_cannot_be_listened_on_is_told_and_does_not_hold_up(
    pool: ThreadPoolExecutor,
) -> None:
    with socket.create_server((N1, 0)) as held:
        port = held.getsockname()[1]
        listener = listen(pool, (N1, port, 1), ("192.0.2.77", port, 1))
        assert listener.result(20)["addresses"] == [
            [N1, port, "the port is taken"],
            ["192.0.2.77", port, "cannot assign requested address"],
        ]
