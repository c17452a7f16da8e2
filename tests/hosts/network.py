"""Hosts on a network, on one machine: namespaces with a switch between them, and a real sshd in each.

    with Network(tmp_path) as network:
        here = network.host("here", "198.18.0.1/24")
        n1 = network.host("n1", "198.18.0.11/24")
        n1.serve_ssh()
        here.trust(n1)
        here.run("ssh", "n1", "hostname")

A host has namespaces of its own for its network, mounts, processes, IPC and name, held by one process:
its init. When that ends, so does all that runs there, as with a machine whose power is cut. Each host
has its own interfaces, host name, /proc, boot id, /dev/shm and home directory; the rest of the file
system is this machine's. The switch is in a namespace too. Nothing has a name outside, and every init
ends with the process that made it, so that two runs do not meet, and a run that is killed leaves
nothing behind. This machine's own network is not touched.

It needs to be root, and Linux's bridge and veth.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from hosts import sshd
from hosts.home import write_passwd
from hosts.keys import make_key
from hosts.namespaces import KEEPER, Namespaces, wait_for
from hosts.processes import end_tree
from hosts.sshd import Sshd

CLONE_NEWNET = 0x40000000
NOBODY = "02:00:00:00:ff:ff"
"""A hardware address that the switch has no port for: frames to it are gone without a word."""
NOWHERE = "100"
"""A routing table that leads there."""
# Prepares a host's own view of the file system, then becomes its init. The two files that it puts over
# the user database and the list of names can be written later on.
SET_UP = """
hostname "$1"
mount --bind "$2/passwd" /etc/passwd
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs -o size=2g shm /dev/shm
ip link set lo up
: >"$2/up"
"""


def missing() -> str:
    """Why there can be no Network here; empty where there can."""
    if os.getuid() != 0:
        return "making network namespaces takes root"
    return sshd.missing()


class Command(subprocess.Popen[str]):
    """A command that has been started on a host. Whatever it is at, it ends with the `with`."""

    def __exit__(self, *details: Any) -> None:
        end_tree(self)
        super().__exit__(*details)


class Host:
    """A machine on the network. `Network.host` makes it."""

    def __init__(self, network: Network, name: str, addresses: Sequence[str]) -> None:
        self.name = name
        self.directory = network.directory / name
        self.home = self.directory / "home"
        self.interfaces = tuple(ipaddress.ip_interface(address) for address in addresses)
        self.sshds: list[Sshd] = []
        self._network = network
        self._swallowed: list[tuple[Host, tuple[str, ...]]] = []
        self.home.mkdir(parents=True, mode=0o700)
        write_passwd(self.directory / "passwd", self.home)
        (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.directory / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        self.key = make_key(self.home / ".ssh" / "id_ed25519")
        self.space = self._boot()

    def _boot(self) -> Namespaces:
        up = self.directory / "up"
        up.unlink(missing_ok=True)
        arguments = (self.name, str(self.directory))
        space = Namespaces(self.directory, (SET_UP, *arguments))
        wait_for(up.exists, lambda: (self.directory / "init.log").read_text())
        return space

    @property
    def address(self) -> str:
        """Its first address."""
        return str(self.interfaces[0].ip)

    @property
    def addresses(self) -> tuple[str, ...]:
        """All its addresses: of eth0, eth1 and so on."""
        return tuple(str(interface.ip) for interface in self.interfaces)

    # -- what runs there ------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """A login's variables, and where Python finds what this project is."""
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TERM")}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def run(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
        limit_s: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host to its end, in its home directory."""
        done = subprocess.run(
            self.space.enter("env", "-C", str(self.home), *words),
            env={**self.environment, **(environment or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *words: str, environment: Mapping[str, str] | None = None) -> Command:
        """Start a command on the host; its output goes to the two pipes. Use it in a `with`."""
        return Command(
            self.space.enter("env", "-C", str(self.home), *words),
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> dict[int, str]:
        """Command lines by pid (this machine's) of all that runs there, but for init and sshd.

        What was started there is found whatever it is called, whoever its parent is.
        """
        try:
            own = Path(f"/proc/{self.space.init}/ns/pid").readlink()
        except FileNotFoundError:  # its power is off
            return {}
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.space.init:
                continue
            try:
                if (entry / "ns" / "pid").readlink() != own:
                    continue
                program = str((entry / "exe").readlink())
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
            if program != sshd.SSHD and words not in ("", KEEPER):  # a zombie has no words
                found[int(entry.name)] = words
        return found

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread's new sockets are the host's. (Threads that it starts inherit that.)"""
        libc = ctypes.CDLL(None, use_errno=True)
        with (
            Path(f"/proc/self/task/{threading.get_native_id()}/ns/net").open() as home,
            Path(f"/proc/{self.space.init}/ns/net").open() as away,
        ):
            assert libc.setns(away.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(home.fileno(), CLONE_NEWNET) == 0

    # -- SSH ------------------------------------------------------------------------------------

    def serve_ssh(
        self, port: int = 22, *, addresses: Sequence[str] = (), options: Sequence[str] = ()
    ) -> Sshd:
        """Start an sshd on these addresses of the host (default: all that it has)."""
        made = Sshd(
            self.directory / f"sshd-{port}",
            addresses=addresses or self.addresses,
            port=port,
            authorized=(),
            options=options,
            enter=self.space.enter(),
        )
        self.sshds.append(made)
        return made.start()

    def trust(self, *others: Host) -> None:
        """Know the keys of their sshds, and be let in: as after the first login, by hand."""
        known = self.home / ".ssh" / "known_hosts"
        with known.open("a") as file:
            for other in others:
                for served in other.sshds:
                    served.authorize(self.key)
                    file.write(served.known_hosts(other.name, *served.addresses))

    def write_ssh_config(self, text: str) -> None:
        """Put ~/.ssh/config in place."""
        (self.home / ".ssh" / "config").write_text(text)

    # -- accidents ------------------------------------------------------------------------------

    def cut(self, *interfaces: int) -> None:
        """Pull the cable out of these interfaces (default: of all)."""
        self._network.set_ports(self, interfaces, "down")

    def restore(self, *interfaces: int) -> None:
        """Plug it in again; returns once frames pass, which the kernel may let wait for a second."""
        self._network.set_ports(self, interfaces, "up")
        wait_for(lambda: self._network.passes(self, interfaces), lambda: f"{self.name}: no carrier")

    def lose_sight(self, *others: Host) -> None:
        """Nothing passes between it and these hosts any more, either way, without a word."""
        for here, there in self._ways(others):
            entry = (there.address, "dev", "eth0")
            here.space.ip("neigh", "replace", *entry, "lladdr", NOBODY, "nud", "permanent")

    def regain_sight(self, *others: Host) -> None:
        """Undo `lose_sight`."""
        for here, there in self._ways(others):
            here.space.ip("neigh", "del", there.address, "dev", "eth0")

    def _ways(self, others: Sequence[Host]) -> Iterator[tuple[Host, Host]]:
        for other in others:
            yield self, other
            yield other, self

    def swallow(self, port: int, *, ends: Sequence[int] | None = None) -> None:
        """From now on what goes to and comes from this TCP port of its first address is gone without a
        word; `ends`: only where this is the other side's port. IPv4. Not twice without `unswallow`."""
        for end in ("",) if ends is None else map(str, ends):
            self._swallow(self, "sport", str(port), ("dport", end) if end else ())
            for other in self._network.hosts.values():
                if other is not self:
                    to = ("to", self.address)
                    self._swallow(
                        other, "dport", str(port), (*to, *(("sport", end) if end else ()))
                    )

    def _swallow(self, host: Host, which: str, port: str, more: Sequence[str]) -> None:
        nowhere = str(host.interfaces[0].network.broadcast_address - 1)
        entry = (nowhere, "dev", "eth0")
        host.space.ip("neigh", "replace", *entry, "lladdr", NOBODY, "nud", "permanent")
        host.space.ip("route", "replace", "default", "via", *entry, "table", NOWHERE)
        rule = (*more, "ipproto", "tcp", which, port, "lookup", NOWHERE)
        host.space.ip("rule", "add", *rule)
        self._swallowed.append((host, rule))

    def unswallow(self) -> None:
        """Undo `swallow`."""
        while self._swallowed:
            host, rule = self._swallowed.pop()
            host.space.ip("rule", "del", *rule)

    def peers_of(self, port: int) -> list[int]:
        """The other sides' ports of the TCP connections of one of its ports."""
        lines = self.run("ss", "-Htn", "state", "established", "sport", "=", f":{port}").stdout
        return [int(line.split()[3].rpartition(":")[2]) for line in lines.splitlines()]

    def reset(self, other: Host) -> int:
        """End all its TCP connections with another host at once, with an RST; how many they were."""
        words = ("ss", "-KHtn", "state", "established", "dst", other.address)
        return len(self.run(*words).stdout.splitlines())

    def power_off(self) -> None:
        """All that runs there ends, without a word to anybody."""
        self._network.unplug(self)
        for served in self.sshds:  # first: a stopped one would never be reaped
            served.stop()
        self.space.end()

    def reboot(self) -> None:
        """Off, and on again, with its sshds: another boot id, nothing running, files as they were."""
        self.power_off()
        (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self.space = self._boot()
        self._network.plug_in(self)
        for served in self.sshds:
            served.enter(self.space.enter())
            served.start()


class Network:
    """Hosts, and a switch for each subnet that they have addresses in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "network"
        self.directory.mkdir()
        self.hosts: dict[str, Host] = {}
        self._bridges: dict[str, str] = {}
        self._plugged: set[str] = set()
        self._switch = Namespaces(self.directory)

    def host(self, name: str, *addresses: str) -> Host:
        """A new host with an interface for each address, such as `198.18.0.1/24` or `fd00::1/64`.

        Interfaces are eth0, eth1 …; hosts whose addresses are of one subnet reach each other. All
        hosts know each other by name (the first address).
        """
        host = self.hosts[name] = Host(self, name, addresses)
        self.plug_in(host)
        for one in self.hosts.values():
            lines = [f"{other.address} {other.name}\n" for other in self.hosts.values()]
            text = "127.0.0.1 localhost\n::1 localhost\n" + "".join(lines)
            (one.directory / "hosts").write_text(text)  # in place: it is mounted
        return host

    def plug_in(self, host: Host) -> None:
        """Give the host its interfaces, each with a cable to its subnet's switch."""
        self._plugged.add(host.name)
        for number, interface in enumerate(host.interfaces):
            bridge = self._bridge(str(interface.network))
            port = self._port(host, number)
            # Its own, so that neighbours know it again after a reboot.
            mac = f"02:00:00:00:{list(self.hosts).index(host.name):02x}:{number:02x}"
            at = ("address", mac, "netns", str(host.space.init))
            peer = ("peer", "name", f"eth{number}", *at)
            self._switch.ip("link", "add", port, "type", "veth", *peer)
            self._switch.ip("link", "set", port, "master", bridge, "up")
            nodad = ("nodad",) if interface.version == 6 else ()
            host.space.ip("addr", "add", str(interface), "dev", f"eth{number}", *nodad)
            host.space.ip("link", "set", f"eth{number}", "up")

    def unplug(self, host: Host) -> None:
        """Take its cables away, where it has any."""
        if host.name in self._plugged:
            self._plugged.remove(host.name)
            for number in range(len(host.interfaces)):
                self._switch.ip("link", "del", self._port(host, number))

    def set_ports(self, host: Host, interfaces: Sequence[int], state: str) -> None:
        """Set the switch's ends of the host's cables up or down."""
        for number in interfaces or range(len(host.interfaces)):
            self._switch.ip("link", "set", self._port(host, number), state)

    def passes(self, host: Host, interfaces: Sequence[int]) -> bool:
        """Whether the switch forwards what comes from these interfaces of the host (default: from all)."""
        for number in interfaces or range(len(host.interfaces)):
            shown = self._switch.ip("-d", "-j", "link", "show", self._port(host, number))
            if json.loads(shown)[0]["linkinfo"]["info_slave_data"]["state"] != "forwarding":
                return False
        return True

    def _port(self, host: Host, number: int) -> str:
        return f"p{list(self.hosts).index(host.name)}-{number}"

    def _bridge(self, subnet: str) -> str:
        if subnet not in self._bridges:
            name = self._bridges[subnet] = f"br{len(self._bridges)}"
            self._switch.ip("link", "add", name, "type", "bridge")
            self._switch.ip("link", "set", name, "up")
        return self._bridges[subnet]

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts, and the switch."""
        for host in self.hosts.values():
            host.power_off()
        self._switch.end()
