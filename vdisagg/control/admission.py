"""Which addresses may connect to the controller's endpoints: ZeroMQ asks here before it lets one in.

An endpoint takes whoever dials it for its engine, so on a network only the cluster's own nodes may.
libzmq asks a REP socket at a fixed in-process address (ZAP, https://rfc.zeromq.org/spec/27) about each
connection to a socket that has a ZAP domain; ours is what the socket is for.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import zmq

from vdisagg.control.sockets import Sockets, send
from vdisagg.plan.model import Plan

ZAP: Final = "inproc://zeromq.zap.01"
LOOPBACK: Final = ("127.0.0.1", "::1")

Ip = IPv4Address | IPv6Address


class Admission:
    """Lets the given addresses in. `refused(domain, address)` hears once of each that is turned away."""

    def __init__(
        self, sockets: Sockets, admitted: frozenset[Ip], refused: Callable[[str, str], None]
    ) -> None:
        self._admitted = admitted
        self._refused = refused
        self._told: set[tuple[str, str]] = set()
        self._sockets = sockets
        self._socket = sockets.make(zmq.REP)
        self._socket.bind(ZAP)
        sockets.watch(self._socket, self._on_request, awaited=True)

    def _on_request(self) -> None:
        for version, request, domain, address, *_ in self._sockets.messages(self._socket, frames=6):
            peer = canonical(address.decode())
            known = peer in self._admitted
            code, reason = (b"200", b"") if known else (b"400", b"not a node of this cluster")
            send(self._socket, [version, request, code, reason, b"", b""])
            refusal = (domain.decode(), str(peer))
            if not known and refusal not in self._told:
                self._told.add(refusal)
                self._refused(*refusal)


def canonical(address: str) -> Ip:
    """An address as it is compared: a dual-stack socket shows IPv4 peers as mapped IPv6 ones."""
    found = ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def admitted(plan: Plan) -> frozenset[Ip]:
    """The addresses of the plan's nodes, of the controller's own machine, and loopback.

    A node that is known by a name is looked up; one that can't be found is nobody's address.
    """
    names: Iterable[str] = (
        *LOOPBACK,
        *(node.address for node in plan.nodes),
        *(instance.handshake.host for instance in plan.instances),
    )
    return frozenset(ip for name in names for ip in _addresses(name))


def _addresses(name: str) -> list[Ip]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return [canonical(str(entry[4][0])) for entry in found]
