"""The IP addresses of this machine's interfaces. It also runs on nodes.

Only the standard library and Python 3.8. Prints {"interfaces": {name: [addresses]}, "reached_at": the
address at which the SSH connection that runs it has come in, or null}.
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import json
import os
import socket
import struct
import sys

SIOCGIFCONF = 0x8912  # linux/sockios.h
IFREQ_SIZE = 40 if sys.maxsize > 2**32 else 32  # struct ifreq, linux/if.h
NAME_SIZE = 16
ADDRESS_AT = 20  # behind the name: family and port of a sockaddr_in
MOST = 4096  # addresses
GLOBAL_SCOPE, LOOPBACK_SCOPE = "00", "10"  # /proc/net/if_inet6; link-local ones are 20
UNFIT = 0x40 | 0x20 | 0x08 | 0x01  # linux/if_addr.h: tentative, deprecated, a duplicate, temporary


def interfaces() -> dict[str, list[str]]:
    """By name: its IPv4 addresses, then its IPv6 ones but for link-local ones, in the kernel's order."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for name, address in (*_ipv4(), *_ipv6()):
        found.setdefault(name, []).append(address)
    return found


def _ipv4() -> list[tuple[str, str]]:
    buffer = array.array("B", bytes(MOST * IFREQ_SIZE))
    at, length = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked.fileno(), SIOCGIFCONF, struct.pack("iP", length, at))
    raw = buffer.tobytes()[: struct.unpack("iP", answer)[0]]
    entries = (raw[start : start + IFREQ_SIZE] for start in range(0, len(raw), IFREQ_SIZE))
    return [
        # An address may have a label of its own, `eth0:1`.
        (
            entry[:NAME_SIZE].partition(b"\0")[0].decode().partition(":")[0],
            socket.inet_ntoa(entry[ADDRESS_AT : ADDRESS_AT + 4]),
        )
        for entry in entries
    ]


def _ipv6() -> list[tuple[str, str]]:
    try:
        with open("/proc/net/if_inet6") as file:  # noqa: PTH123  # as short as it gets, on any node
            lines = [line.split() for line in file]
    except FileNotFoundError:  # no IPv6
        return []
    return [
        (name, str(ipaddress.IPv6Address(int(digits, 16))))
        for digits, _, _, scope, flags, name in lines
        if scope in (GLOBAL_SCOPE, LOOPBACK_SCOPE) and not int(flags, 16) & UNFIT
    ]


def reached_at() -> str | None:
    """Where sshd took the connection that this runs in."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else None


def main(words: list[str]) -> None:
    print(json.dumps({"interfaces": interfaces(), "reached_at": reached_at()}))


if __name__ == "__main__":
    main(sys.argv[1:])
