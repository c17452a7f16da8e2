"""Which ports of a machine are taken, and by whom. A test bind is the judge.

As a module for this machine; it travels to nodes too (launch/deputy.py). Like the guard it knows only the standard
library and Python 3.8:

    ports.py    reads [[host, port], …] as JSON on stdin, prints [[host, port, who or why], …] of those
                that can't be bound
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator
    from typing import Protocol, TypeVar

    class Address(Hashable, Protocol):
        """As plan.model.Address, which is not on nodes."""

        @property
        def host(self) -> str: ...
        @property
        def port(self) -> int: ...

    AnyAddress = TypeVar("AnyAddress", bound=Address)

LISTEN = "0A"  # tcp_states.h
UNKNOWN = "unknown, perhaps another user's process"


def busy(addresses: Iterable[AnyAddress]) -> dict[AnyAddress, str]:
    """Which of the addresses cannot be bound here: who holds each, or the system's reason."""
    refused = {a: reason for a in addresses if (reason := _why_not(a)) is not None}
    return {a: _owner(a.port) if reason == "" else reason for a, reason in refused.items()}


def listening() -> frozenset[int]:
    """Ports that some process of this machine listens on, on whatever address."""
    return frozenset(port for port, state, _ in _sockets() if state == LISTEN)


def _why_not(address: Address) -> str | None:
    """None when the address can be listened on, "" when it is in use, else the system's reason."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as exc:
        return f"{address.host} is not known here: {exc.strerror}"
    family, kind, protocol, _, target = found[0]
    try:
        with socket.socket(family, kind, protocol) as probe:
            # As ZeroMQ and the API server do; otherwise the last run's TIME_WAIT would count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(target)
            probe.listen(1)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            return ""
        return f"{address.host} cannot be bound here: {exc.strerror}"
    return None


def _sockets() -> Iterator[tuple[int, str, str]]:
    """Local port, state and inode of every TCP socket in this network namespace."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:  # no IPv6
            continue
        for line in lines:
            fields = line.split()
            yield int(fields[1].rpartition(":")[2], 16), fields[3], fields[9]


def _owner(port: int) -> str:
    """Pid and command of whoever has a socket on this port, a listener first."""
    held = sorted((state != LISTEN, inode) for p, state, inode in _sockets() if p == port)
    wanted = {f"socket:[{inode}]": rank for rank, (_, inode) in enumerate(held) if inode != "0"}
    owners = sorted((wanted[link], pid) for pid, link in _open_sockets() if link in wanted)
    if not owners:
        return UNKNOWN
    pid = owners[0][1]
    return f"pid {pid} ({command_of(pid)})"


def _open_sockets() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            descriptors = list((entry / "fd").iterdir())
        except OSError:  # another user's, or gone meanwhile
            continue
        for descriptor in descriptors:
            with contextlib.suppress(OSError):  # closed meanwhile
                link = os.readlink(descriptor)  # noqa: PTH115  # Path.readlink came with 3.9
                if link.startswith("socket:"):
                    yield int(entry.name), link


def command_of(pid: int) -> str:
    """A process's command line on one line, cut to a readable length."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        text = b" ".join(words).decode(errors="replace").strip()
        text = text or Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone meanwhile"
    # Scripts have line breaks, and whoever runs one may have put in what moves a terminal's cursor.
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= 80 else text[:77] + "…"


class _HostPort(NamedTuple):
    host: str
    port: int


def main(words: list[str]) -> None:
    asked = [_HostPort(host, port) for host, port in json.load(sys.stdin)]
    print(json.dumps([[host, port, who] for (host, port), who in busy(asked).items()]))


if __name__ == "__main__":
    main(sys.argv[1:])
