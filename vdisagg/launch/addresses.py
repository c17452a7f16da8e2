"""Finds out, before planning, the addresses that a topology leaves open, and the way back to us."""

from __future__ import annotations

import ipaddress
import socket
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vdisagg.errors import Failure
from vdisagg.launch import interfaces
from vdisagg.launch.background import at_once, failures, raise_all
from vdisagg.plan.addresses import look_ups, nodes_that_dial
from vdisagg.plan.model import Ssh

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdisagg.launch.dialogue import Dialogue
    from vdisagg.plan.addresses import LookUp
    from vdisagg.topology.model import Node, Topology

ASK_LIMIT_S = 20.0  # one interpreter starts; home directories on network file systems are slow
ANY_PORT = 9  # a UDP socket that is only connected sends nothing


class Found(msgspec.Struct, frozen=True):
    """What planning wants to know (see plan.site.Here)."""

    addresses: dict[str, str]
    """Data addresses that are not written in the topology, by node."""
    routes: dict[str, str]
    """This machine's address on the way to each node of another machine, by node."""


def find_addresses(
    topology: Topology,
    dialogue_of: Callable[[str], Dialogue] | None = None,
    *,
    host_name: Callable[[str, Ssh], str | None] | None = None,
    tick: Callable[[], None] | None = None,
) -> Found:
    """Look up what the topology leaves open, on all nodes at once.

    `dialogue_of`: how a node is asked, by name; without it no node is asked, and what can't be
    found out from here is left out. `host_name`: what OpenSSH makes of a host, None where this machine
    cannot look it up, since the way there leads through others (default: by the user's ssh_config).
    `tick` is called several times a second, and may raise to break off.
    Raises Failure that names each node whose address is not found, or to which no route leads.
    """
    ask = _openssh_name if host_name is None else host_name
    nodes = topology.nodes
    outcomes = at_once(
        {
            wanted.node: partial(_address, wanted, nodes[wanted.node], dialogue_of, ask)
            for wanted in look_ups(topology)
        },
        tick=tick,
    )
    failed = failures(outcomes)
    addresses = {name: found for name, found in outcomes.items() if isinstance(found, str)}
    routes: dict[str, str] = {}
    must_be_found = dialogue_of is not None and topology.control == "direct"
    for name in nodes_that_dial(topology):
        address = nodes[name].data_ip or addresses.get(name)
        try:
            if address is not None:
                routes[name] = route_to(name, address)
        except Failure as exc:
            failed += [exc] if must_be_found else []
    raise_all(failed)
    return Found(addresses, routes)


def route_to(node: str, address: str) -> str:
    """This machine's own address on the way to another one. Sends nothing. Raises Failure."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, ANY_PORT))
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError as exc:
        raise Failure(
            f"{node}: no route from this machine to {address}: {exc.strerror}; next: say the `data_ip:` "
            "that this machine reaches, or `control: tunnel`"
        ) from exc


def _address(
    wanted: LookUp,
    node: Node,
    dialogue_of: Callable[[str], Dialogue] | None,
    host_name: Callable[[str, Ssh], str | None],
) -> str | None:
    if node.ssh is None:
        assert wanted.interface is not None
        return choose(wanted.node, wanted.interface, interfaces.interfaces())
    if wanted.interface is None:
        ssh = Ssh(**node.ssh.model_dump())
        known = _resolved(host_name(wanted.node, ssh))
        if known is not None:
            return known
    if dialogue_of is None:
        return None
    answer = _ask(wanted.node, dialogue_of(wanted.node))
    if wanted.interface is not None:
        return choose(wanted.node, wanted.interface, answer.interfaces)
    if answer.reached_at is None:
        raise Failure(f"{wanted.node}: its address is not found; next: say its `data_ip:`")
    return answer.reached_at


class _Answer(msgspec.Struct, frozen=True):
    interfaces: dict[str, list[str]]
    reached_at: str | None


def choose(node: str, interface: str, found: dict[str, list[str]]) -> str:
    """An interface's first address, IPv4 before IPv6. Raises Failure that names those that there are."""
    addresses = found.get(interface, [])
    if addresses:
        return addresses[0]
    has = ", ".join(f"{name} {each[0]}" for name, each in found.items() if each)
    lacks = "has no IP address" if interface in found else "is not there"
    raise Failure(
        f"nodes.{node}.interface: {interface} {lacks} on {node}; next: say another, or `data_ip:`; "
        f"it has {has or 'none'}"
    )


def _ask(node_name: str, dialogue: Dialogue) -> _Answer:
    done = dialogue.run(interfaces, limit_s=ASK_LIMIT_S)
    try:
        return msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.DecodeError as exc:
        said = (done.stderr or done.stdout).strip()[-500:] or f"exit code {done.code}"
        raise Failure(
            f"{node_name}: its addresses cannot be listed: {said}; next: say its `data_ip:`"
        ) from exc


def _resolved(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return None
    return str(ipaddress.ip_address(str(found[0][4][0]).partition("%")[0]))


def _openssh_name(node: str, ssh: Ssh) -> str | None:
    from vdisagg.launch.ssh.options import route  # here: it takes 0.2 s to load, and few need it

    hops = route(node, ssh)
    through_others = len(hops) > 1 or hops[-1].proxy_command is not None
    return None if through_others else hops[-1].hostname
