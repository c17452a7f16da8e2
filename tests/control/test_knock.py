"""Whether somebody listens at an address, without waiting for it."""

from __future__ import annotations

import time
from socket import create_server

import pytest

from vdisagg.control.knock import Knock


def answer(knock: Knock) -> str:
    """Its answer, when there is one."""
    deadline = time.monotonic() + 60
    while (found := knock.answer()) == "pending":
        assert time.monotonic() < deadline
    return found


def test_where_somebody_listens_it_is_open() -> None:
    with create_server(("127.0.0.1", 0)) as server:
        assert answer(Knock(f"tcp://127.0.0.1:{server.getsockname()[1]}")) == "open"


def test_where_nobody_listens_it_is_refused() -> None:
    with create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert answer(Knock(f"tcp://127.0.0.1:{port}")) == "refused"


@pytest.mark.parametrize("address", ["tcp://255.255.255.255:9", "tcp://[ff02::1]:9"])
def test_what_can_be_no_ones_address_is_unreachable(address: str) -> None:
    assert answer(Knock(address)) == "unreachable"
