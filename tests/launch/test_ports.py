"""Who holds which port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from vdisagg.launch import ports
from vdisagg.plan.model import Address


def test_d09_a_held_port_is_named_with_pid_and_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = Address("127.0.0.1", held.getsockname()[1])
        assert ports.busy([address])[address].startswith(f"pid {os.getpid()} (")


def test_d09_another_process_that_holds_a_port_is_named() -> None:
    script = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        address = Address("127.0.0.1", int(other.stdout.readline()))
        who = ports.busy([address])[address]
        other.kill()
    assert who.startswith(f"pid {other.pid} ({sys.executable} -c import socket")


def test_a_command_line_with_line_breaks_is_told_on_one_line() -> None:
    script = "echo up\n\nread line\t# \x1b[2J"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["sh", "-c", script], **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == b"up\n"
        told = ports.command_of(other.pid)
        other.kill()
    assert told == "sh -c echo up read line # [2J"


def test_free_ports_are_not_busy_and_stay_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = Address("127.0.0.1", held.getsockname()[1])
    assert ports.busy([address, address]) == {}
    assert ports.busy([address]) == {}


def test_a_port_that_is_held_on_all_addresses_is_busy_on_each() -> None:
    with socket.create_server(("0.0.0.0", 0)) as held:
        address = Address("127.0.0.1", held.getsockname()[1])
        assert address in ports.busy([address])


def test_a_connection_of_the_last_run_in_time_wait_is_no_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = listener.getsockname()
        with socket.create_connection(target) as client:
            accepted, _ = listener.accept()
            accepted.close()  # the listener's side closes first: it keeps the TIME_WAIT
            assert client.recv(1) == b""
    assert ports.busy([Address(*target)]) == {}


def test_an_address_of_another_machine_cannot_be_bound_and_that_is_said() -> None:
    address = Address("192.0.2.77", 9)  # RFC 5737: never assigned
    assert "192.0.2.77 cannot be bound here: " in ports.busy([address])[address]


def test_an_unknown_name_is_said() -> None:
    address = Address("no-such-host.invalid", 9)
    assert "no-such-host.invalid is not known here" in ports.busy([address])[address]


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_addresses_are_tested_too() -> None:
    try:
        held = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with held:
        address = Address("::1", held.getsockname()[1])
        assert ports.busy([address])[address].startswith(f"pid {os.getpid()} (")
        assert ports.busy([Address("127.0.0.1", address.port)]) == {}


def test_listening_ports_are_listed_and_others_are_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert port in ports.listening()
    assert port not in ports.listening()
