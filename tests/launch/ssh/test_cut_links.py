"""A cable that is pulled: every step ends in an error within its time, and nothing hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hosts.network import Host, Network, missing
from vdisagg.errors import Unreachable
from vdisagg.launch.ssh.connect import connect
from vdisagg.launch.ssh.connection import Connection
from vdisagg.plan.model import Ssh

LIMIT_S = 30.0  # far more than any of the steps may take, and less than TCP's own patience

Connect = Callable[..., Connection]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    if why := missing():
        pytest.skip(why)
    with Network(tmp_path) as made:
        yield made


@pytest.fixture
def here(network: Network) -> Host:
    return network.host("here", "198.18.0.1/24")


@pytest.fixture
def node(network: Network, here: Host) -> Host:
    made = network.host("n1", "198.18.0.11/24")
    made.serve_ssh()
    here.trust(made)
    return made


@pytest.fixture
def to_node(here: Host, node: Host, tmp_path: Path) -> Connect:
    """Connects from `here`, with keepalives each second."""

    def dial(*, limit_s: float = 20.0, silent_s: int = 5) -> Connection:
        config = tmp_path / "config"
        config.write_text(
            f"Host n1\n HostName {node.address}\n IdentityFile {here.key.path}\n"
            f" UserKnownHostsFile {here.home}/.ssh/known_hosts\n"
            f" ServerAliveInterval 1\n ServerAliveCountMax {silent_s}\n"
        )
        with here.entered():
            return connect("n1", Ssh("n1"), config=config, limit_s=limit_s)

    return dial


def test_e04_a_link_that_is_cut_ends_commands_lines_and_what_is_said(
    to_node: Connect, node: Host
) -> None:
    with (
        to_node() as connection,
        closing(connection.talk(("cat",))) as talk,
        ThreadPoolExecutor() as threads,
    ):
        lines = connection.lines(("sh", "-c", "echo begun; exec sleep 300"))
        assert next(lines) == "begun"
        begun = time.monotonic()
        node.cut()
        ends: list[Future[Any]] = [
            threads.submit(next, lines),
            threads.submit(connection.run, ("sleep", "300"), limit_s=120),
            threads.submit(talk.send, b"x" * 20_000_000, limit_s=120),
            threads.submit(next, talk.lines()),
        ]
        for end in ends:
            assert isinstance(end.exception(LIMIT_S), Unreachable)
        assert time.monotonic() - begun < LIMIT_S
    assert time.monotonic() - begun < LIMIT_S


def test_a_limit_shorter_than_the_keepalive_holds_as_well(to_node: Connect, node: Host) -> None:
    with to_node() as connection:
        node.cut()
        with pytest.raises(Unreachable, match=r"^n1: .*; next: "):
            connection.run(("true",), limit_s=0.5)


def test_so_does_one_for_what_is_said_to_a_command(to_node: Connect, node: Host) -> None:
    with to_node() as connection, closing(connection.talk(("cat",))) as talk:
        node.cut()
        with pytest.raises(Unreachable, match=r"^n1: .*; next: "):
            talk.send(b"x" * 20_000_000, limit_s=0.5)


def test_closing_over_a_cut_link_returns(to_node: Connect, node: Host) -> None:
    connection = to_node()
    lines = connection.lines(("sh", "-c", "echo begun; exec sleep 300"))
    next(lines)
    node.cut()
    begun = time.monotonic()
    connection.close()
    assert time.monotonic() - begun < LIMIT_S


def returned(to_node: Connect) -> Connection:
    """Connect as soon as it can be done: who has asked in vain for the node's place in the network may
    hear so a moment after it is back."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return to_node()
        except Unreachable:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_node_without_a_cable_is_unreachable_and_comes_back(to_node: Connect, node: Host) -> None:
    node.cut()
    with pytest.raises(Unreachable, match=r"^n1: no connection to 198\.18\.0\.11:22: .*; next: "):
        to_node(limit_s=2)
    node.restore()
    with returned(to_node) as connection:
        assert connection.run(("hostname",), limit_s=10).stdout == "n1\n"


def test_a_short_cut_is_survived(to_node: Connect, node: Host) -> None:
    with to_node(silent_s=60) as connection, ThreadPoolExecutor() as threads:
        running = threads.submit(
            connection.run, ("sh", "-c", "sleep 1; echo done"), limit_s=LIMIT_S
        )
        node.cut()
        node.restore()
        assert running.result().stdout == "done\n"
