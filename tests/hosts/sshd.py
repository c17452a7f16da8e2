"""A real sshd with throw-away keys and configuration, for one test.

    with Sshd(tmp_path / "sshd", home=tmp_path / "home", options=["MaxSessions 4"]) as sshd:
        subprocess.run(["ssh", "-F", str(sshd.ssh_config("node")), "node", "true"], check=True)

As root it is a full sshd; otherwise one that lets in nobody but who runs the tests. It needs Debian's
openssh-server (requirements/test-system.sh).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hosts.home import user_name, with_home
from hosts.keys import Key, make_key
from hosts.processes import Identity, descendants, end_tree, identity, kill

SSHD = "/usr/sbin/sshd"  # it insists on being called by an absolute path
SEPARATION = Path("/run/sshd")  # compiled into Debian's sshd: an empty directory of root's
START_LIMIT_S = 10.0


def missing() -> str:
    """Why there can be no Sshd here; empty where there can."""
    if not os.access(SSHD, os.X_OK):
        return f"{SSHD} is missing: run `sh requirements/test-system.sh`"
    return ""


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nothing listens on at the moment."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as holder:
        holder.bind((address, 0))
        return int(holder.getsockname()[1])


def name_of(host: str, port: int) -> str:
    """What known_hosts calls a server: `host`, or `[host]:port` where the port is not 22."""
    return host if port == 22 else f"[{host}]:{port}"


class Sshd:
    """One sshd, from `with` to the end of it; what clients started through it ends too, unless it has
    left for a session of its own and outlived its login."""

    def __init__(
        self,
        directory: Path,
        *,
        addresses: Sequence[str] = ("127.0.0.1",),
        port: int | None = None,
        host_key_kinds: Sequence[str] = ("ed25519",),
        authorized: Sequence[Key] | None = None,
        options: Sequence[str] = (),
        home: Path | None = None,
        enter: Sequence[str] = (),
    ) -> None:
        """
        directory: its own, made if need be: keys, configuration, log
        port: default: a free one (of this machine: within `enter`, say one)
        authorized: keys that let a client in; default: one that is made, `client_key`
        options: lines of sshd_config; they win over what stands here
        home: another home directory for who logs in (as root only); default: the real one
        enter: words before the command line, such as `("ip", "netns", "exec", NAME)`
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory = directory
        self.addresses = tuple(addresses)
        self.port = port if port is not None else free_port(addresses[0])
        self.user = user_name()
        self.log = directory / "log"
        self.host_keys = [make_key(directory / f"host_{kind}", kind) for kind in host_key_kinds]
        keys = [make_key(directory / "client")] if authorized is None else list(authorized)
        self.client_key = keys[0] if keys else None
        self._authorized = directory / "authorized_keys"
        self._authorized.write_text("".join(f"{key.public}\n" for key in keys))
        self._options = tuple(options)
        self._enter = (*enter, *(with_home(directory, home) if home is not None else ()))
        self._process: subprocess.Popen[bytes] | None = None

    # -- what clients need ----------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The first address that it listens on."""
        return self.addresses[0]

    def known_hosts(self, *names: str) -> str:
        """Lines for known_hosts, for its addresses, and for `names` (with its port) where given."""
        hosts = names or self.addresses
        return "".join(
            f"{name_of(host, self.port)} {' '.join(key.public.split()[:2])}\n"
            for host in hosts
            for key in self.host_keys
        )

    def known_hosts_file(self) -> Path:
        """A file with these lines."""
        file = self.directory / "known_hosts"
        file.write_text(self.known_hosts())
        return file

    def ssh_config(self, alias: str) -> Path:
        """A client's configuration file that makes `ssh -F FILE ALIAS` work."""
        file = self.directory / "ssh_config"
        file.write_text(self.ssh_config_lines(alias))
        return file

    def ssh_config_lines(self, alias: str) -> str:
        """The same, as text for a larger file."""
        assert self.client_key is not None
        return (
            f"Host {alias}\n"
            f"  HostName {self.address}\n"
            f"  Port {self.port}\n"
            f"  User {self.user}\n"
            f"  IdentityFile {self.client_key.path}\n"
            "  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts_file()}\n"
        )

    def authorize(self, key: Key) -> None:
        """Let one more key in."""
        with self._authorized.open("a") as file:
            file.write(f"{key.public}\n")

    # -- the process ----------------------------------------------------------------------------

    def start(self) -> Sshd:
        """Start it (again), and return when it listens."""
        assert self._process is None, "it runs already"
        if os.getuid() == 0:
            SEPARATION.mkdir(mode=0o755, exist_ok=True)
        config = self.directory / "sshd_config"
        config.write_text(self._config())
        begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._enter, SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        try:
            self._wait(begun)
        except BaseException:
            self.stop()
            raise
        return self

    def _wait(self, begun: int) -> None:
        """sshd says that it listens on an address once it does. (A connection that only looks would
        count towards MaxStartups.)"""
        assert self._process is not None
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            said = self.log.read_bytes()[begun:].decode(errors="replace")
            if said.count("Server listening on ") >= len(self.addresses):
                return
            assert self._process.poll() is None, f"sshd has ended:\n{said}"
            assert time.monotonic() < deadline, f"sshd does not listen:\n{said}"
            time.sleep(0.01)

    def stop(self) -> None:
        """End it and its connections, as a power cut does; `start` starts it again."""
        if self._process is not None:
            end_tree(self._process)
            self._process = None

    def freeze(self) -> None:
        """Stop it and the sessions that there are (SIGSTOP); what they run goes on."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all of it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid, _ in self.processes():
            with contextlib.suppress(OSError):  # it has just ended
                # nsenter stops with its child, and does not go on with it.
                if Path(f"/proc/{pid}/exe").readlink().name.startswith(("sshd", "nsenter")):
                    os.kill(pid, number)

    def drop_connections(self) -> None:
        """End the logins that there are, and what they run, and go on listening. A login first: it would
        tell its client that what it runs has ended."""
        for pid, _ in sorted(self.logins(), key=lambda one: (int(one[1]), one[0])):
            kill(pid)

    def enter(self, words: Sequence[str]) -> None:
        """From the next start on, stand these words before the command line."""
        self._enter = tuple(words)

    def processes(self) -> set[Identity]:
        """All processes of it at this moment, and what clients run through it."""
        if self._process is None:
            return set()
        own = identity(self._process.pid)
        return descendants(self._process.pid) | ({own} if own else set())

    def logins(self) -> set[Identity]:
        """Processes that belong to connections, at this moment."""
        assert self._process is not None
        return descendants(self._process.pid) - self._listener()

    def _listener(self) -> set[Identity]:
        """The listening sshd, where it is not our own child but that of a word of `enter`."""
        assert self._process is not None
        marked = set()
        for pid, ticks in descendants(self._process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"[listener]" in words or b"\0-f\0" in words:
                marked.add((pid, ticks))
        return marked

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def _config(self) -> str:
        listen = [
            f"ListenAddress {f'[{a}]' if ':' in a else a}:{self.port}" for a in self.addresses
        ]
        return "\n".join(
            (
                *self._options,  # the first value that sshd reads for a key is the one that counts
                *listen,
                *(f"HostKey {key.path}" for key in self.host_keys),
                f"AuthorizedKeysFile {self._authorized}",
                "AuthenticationMethods publickey",
                "StrictModes no",  # a test's directory may lie below one that others can write to
                "PermitRootLogin prohibit-password",
                "UsePAM no",
                "PidFile none",
                "LogLevel VERBOSE",
                "Subsystem sftp internal-sftp",
                "",
            )
        )

    def __enter__(self) -> Sshd:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
