"""Addresses that a topology leaves open are found where they are, and the way back to us."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vdisagg.errors import Failure
from vdisagg.launch import interfaces
from vdisagg.launch.addresses import choose, find_addresses, route_to
from vdisagg.launch.dialogue import Completed, Dialogue
from vdisagg.topology.load import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from vdisagg.plan.model import Ssh
    from vdisagg.topology.model import Topology

TEXT = """\
model: m
nodes:
  n1: {device: cpu, ssh: box1}
  n2: {device: cpu, ssh: box2, interface: lo}
prefill: {node: n1}
decode: {node: n2}
"""


class OnThisMachine(Dialogue):
    """A node that is this machine, reached at some address: it is asked without a connection."""

    def __init__(self, reached_at: str, *, say: str | None = None) -> None:
        self._env = {**os.environ, "SSH_CONNECTION": f"192.0.2.1 50000 {reached_at} 22"}
        self._say = say

    def run(
        self,
        module: ModuleType,
        *words: str,
        stdin: str = "",
        limit_s: float,
        along: Sequence[ModuleType] = (),
    ) -> Completed:
        assert not along, "it would not be found"
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(module.__file__), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=self._env,
        )
        return Completed(done.returncode, self._say if self._say is not None else done.stdout, "no")


@pytest.fixture
def topology(tmp_path: Path) -> Callable[[str], Topology]:
    def load_text(text: str) -> Topology:
        file = tmp_path / "t.yaml"
        file.write_text(textwrap.dedent(text))
        return load(file)

    return load_text


def names(known: Mapping[str, str | None]) -> Callable[[str, Ssh], str | None]:
    return lambda node, ssh: known[ssh.host]


def test_an_interface_is_asked_on_its_node_and_a_host_name_resolved_here(
    topology: Callable[[str], Topology],
) -> None:
    found = find_addresses(
        topology(TEXT),
        lambda node: OnThisMachine("192.0.2.7"),
        host_name=names({"box1": "127.0.0.9"}),
    )
    assert found.addresses == {"n1": "127.0.0.9", "n2": "127.0.0.1"}
    assert found.routes == {"n1": "127.0.0.1", "n2": "127.0.0.1"}


@pytest.mark.parametrize("name", [None, "no-such-host.invalid"])
def test_behind_a_jump_host_the_node_says_where_ssh_came_in(
    topology: Callable[[str], Topology], name: str | None
) -> None:
    found = find_addresses(
        topology(TEXT), lambda node: OnThisMachine("127.0.0.5"), host_name=names({"box1": name})
    )
    assert found.addresses["n1"] == "127.0.0.5"


def test_without_connections_what_only_nodes_know_is_left_out(
    topology: Callable[[str], Topology],
) -> None:
    found = find_addresses(topology(TEXT), host_name=names({"box1": "127.0.0.9"}))
    assert found.addresses == {"n1": "127.0.0.9"}
    assert found.routes == {"n1": "127.0.0.1"}


def test_what_is_written_is_not_looked_up(topology: Callable[[str], Topology]) -> None:
    text = TEXT.replace("box1", "box1, data_ip: 127.0.0.3").replace(
        "interface: lo", "data_ip: '::1'"
    )
    found = find_addresses(topology(text), host_name=names({}))
    assert found.addresses == {}
    assert found.routes == {"n1": "127.0.0.1", "n2": "::1"}


def test_every_node_that_fails_is_named_at_once(topology: Callable[[str], Topology]) -> None:
    connections = {"n1": OnThisMachine("127.0.0.5", say="motd"), "n2": OnThisMachine("127.0.0.5")}
    with pytest.raises(Failure) as caught:
        find_addresses(
            topology(TEXT.replace("interface: lo", "interface: ib7")),
            connections.__getitem__,
            host_name=names({"box1": None}),
        )
    assert "n1: its addresses cannot be listed: no; next: say its `data_ip:`" in str(caught.value)
    assert "nodes.n2.interface: ib7 is not there on n2; next: say another" in str(caught.value)
    assert "it has lo 127.0.0.1" in str(caught.value)


def test_an_interface_of_this_machine_is_looked_up_here(
    topology: Callable[[str], Topology],
) -> None:
    text = "model: m\nnodes: {here: {device: cpu, interface: lo}}\nprefill: {}\ndecode: {}\n"
    assert find_addresses(topology(text)).addresses == {"here": "127.0.0.1"}


def test_ipv4_comes_before_ipv6_and_an_interface_without_either_is_a_failure() -> None:
    found = {"eth1": ["192.0.2.2", "2001:db8::2"], "ib0": ["2001:db8::3"], "eth9": []}
    assert choose("n1", "eth1", found) == "192.0.2.2"
    assert choose("n1", "ib0", found) == "2001:db8::3"
    with pytest.raises(Failure, match=r"eth9 has no IP address on n1; .* it has eth1 192\.0\.2\.2"):
        choose("n1", "eth9", found)


def test_a_route_is_the_address_of_this_machine_that_leads_there() -> None:
    assert route_to("n1", "127.0.0.77") == "127.0.0.1"
    assert route_to("n1", "::1") == "::1"


def test_d10_no_route_is_said_with_what_helps() -> None:
    with pytest.raises(
        Failure, match=r"n1: no route from this machine to 255\.255\.255\.255"
    ) as caught:
        route_to("n1", "255.255.255.255")  # which no ordinary socket may send to
    assert "`control: tunnel`" in str(caught.value)


def test_the_interfaces_are_those_that_the_system_shows() -> None:
    """Held against `getifaddrs`, by way of what can be bound."""
    found = interfaces.interfaces()
    assert found.keys() == {name for _, name in socket.if_nameindex()}
    assert found["lo"][0] == "127.0.0.1"
    for address in (address for each in found.values() for address in each):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
