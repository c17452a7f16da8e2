"""The effective connection options of a destination: as OpenSSH would take them, the topology first.

`route` gives them for every host on the way, jump hosts first. What changes the connection and is not
supported is named in an error (directives.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from pathlib import Path
from typing import Literal

import msgspec

from vdisagg.errors import SshOptionRefused
from vdisagg.launch.ssh import directives
from vdisagg.launch.ssh.settings import Settings, home, local_user, settings, unset
from vdisagg.plan.model import Ssh

Family = Literal["any", "inet", "inet6"]
Strictness = Literal["yes", "accept-new", "no"]

KEEPALIVE_S = 5.0  # ours where ServerAliveInterval is not set: OpenSSH would send none
KEEPALIVE_COUNT = 3  # OpenSSH's default
PORT = 22

_DEFAULT_IDENTITY = re.compile(r"~/\.ssh/id_\w+")


class Options(msgspec.Struct, frozen=True):
    """How one host is reached. Paths are expanded; lists are in OpenSSH's order."""

    alias: str
    """The host as the topology, or a ProxyJump, names it."""
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    identities_named: bool
    """Whether somebody named them; otherwise they are OpenSSH's defaults."""
    identities_only: bool
    agent: str | None
    """Path of the agent's socket; None: no agent."""
    user_known_hosts: tuple[str, ...]
    global_known_hosts: tuple[str, ...]
    host_key_alias: str | None
    strict_host_key_checking: Strictness
    hash_known_hosts: bool
    proxy_jump: tuple[Ssh, ...]
    proxy_command: str | None
    """For /bin/sh; expanded."""
    connect_timeout_s: float | None
    keepalive_s: float
    keepalive_count: int
    address_family: Family
    bind_address: str | None
    ciphers: tuple[str, ...] = ()
    """What may be negotiated; empty: not said. So for the four that follow."""
    macs: tuple[str, ...] = ()
    key_exchanges: tuple[str, ...] = ()
    host_key_algorithms: tuple[str, ...] = ()
    key_algorithms: tuple[str, ...] = ()
    """To log in with."""
    required_rsa_bits: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    """Names and values that sshd is asked to give to commands. Those of SendEnv are not: what runs on a node
    should not depend on who starts it."""

    @property
    def host_key_name(self) -> str:
        """What known_hosts calls this host."""
        if self.host_key_alias is not None:
            return self.host_key_alias
        return self.hostname if self.port == PORT else f"[{self.hostname}]:{self.port}"

    def __str__(self) -> str:
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{host}:{self.port}"


def route(where: str, ssh: Ssh, config: Path | None = None) -> tuple[Options, ...]:
    """The options of every host on the way to a destination, in the order of dialling.

    `where` begins the text of errors: the node's name. Raises SshOptionRefused.
    """
    return _route(where, ssh, None, (), config)


def _route(
    where: str,
    ssh: Ssh,
    jumps: tuple[Ssh, ...] | None,
    behind: tuple[str, ...],
    config: Path | None,
) -> tuple[Options, ...]:
    """As OpenSSH does: to the last jump host by way of those before it, else as that host's own
    configuration says."""
    if ssh.host in behind:
        raise SshOptionRefused(
            f"{where}: ProxyJump goes in a circle: {' by way of '.join((*behind, ssh.host))}; "
            f"next: except the jump host in ~/.ssh/config (`Host * !{ssh.host}`)"
        )
    options = resolve(where, ssh, config)
    jumps = options.proxy_jump if jumps is None else jumps
    if not jumps:
        return (options,)
    before = _route(where, jumps[-1], jumps[:-1] or None, (*behind, ssh.host), config)
    return (*before, options)


def resolve(where: str, ssh: Ssh, config: Path | None = None) -> Options:
    """The options of one host alone. Raises SshOptionRefused."""
    said = settings(where, ssh, config)
    directives.refuse(where, ssh.host, said, lambda: unset(where, ssh))
    return options_from(said, ssh)


def options_from(said: Settings, ssh: Ssh) -> Options:
    """Read settings; what the topology says of the key wins here, of user and port before."""

    def one(keyword: str, default: str = "") -> str:
        return (said.get(keyword) or [default])[0]

    def is_on(keyword: str) -> bool:
        return one(keyword) in ("yes", "true")

    def names(keyword: str) -> tuple[str, ...]:
        return tuple(name for name in one(keyword).split(",") if name)

    hostname, port, user = one("hostname", ssh.host), int(one("port", "22")), one("user")
    alias = one("host", ssh.host.rpartition("@")[2])
    host_key_alias = one("hostkeyalias") or None
    tokens = _tokens(
        alias, hostname, port, user, host_key_alias, jump=one("proxyjump").rpartition(",")[2]
    )

    def files(keyword: str, default: str) -> tuple[str, ...]:
        found = one(keyword, default).split()
        return tuple(path(file, tokens) for file in found if file != "none")

    defaults = said.get("identityfile", [])
    named = ssh.identity_file is not None or not all(map(_DEFAULT_IDENTITY.fullmatch, defaults))
    identities = [ssh.identity_file] if ssh.identity_file is not None else defaults
    keepalive_s = _seconds(one("serveraliveinterval"))
    jump = one("proxyjump", "none")
    command = one("proxycommand", "none")
    variables = (text.partition("=") for text in said.get("setenv", ()))
    families: dict[str, Family] = {"inet": "inet", "inet6": "inet6"}
    return Options(
        alias=alias,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=tuple(path(file, tokens) for file in identities if file != "none"),
        identities_named=named,
        identities_only=is_on("identitiesonly"),
        agent=_agent(one("identityagent", "SSH_AUTH_SOCK"), tokens),
        user_known_hosts=files("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"),
        global_known_hosts=files(
            "globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
        ),
        host_key_alias=host_key_alias,
        strict_host_key_checking=_strictness(one("stricthostkeychecking")),
        hash_known_hosts=is_on("hashknownhosts"),
        proxy_jump=() if jump == "none" else tuple(_hop(hop) for hop in jump.split(",")),
        proxy_command=None if command == "none" else expand(command, tokens),
        connect_timeout_s=_seconds(one("connecttimeout")),
        keepalive_s=keepalive_s or KEEPALIVE_S,
        keepalive_count=int(one("serveralivecountmax", str(KEEPALIVE_COUNT))) or KEEPALIVE_COUNT,
        address_family=families.get(one("addressfamily"), "any"),
        bind_address=one("bindaddress") or None,
        ciphers=names("ciphers"),
        macs=names("macs"),
        key_exchanges=names("kexalgorithms"),
        host_key_algorithms=names("hostkeyalgorithms"),
        key_algorithms=names("pubkeyacceptedalgorithms"),
        required_rsa_bits=int(one("requiredrsasize", "0")),
        environment=tuple((name, value) for name, _, value in variables),
    )


def _strictness(value: str) -> Strictness:
    """Nobody is asked here, so that `ask` means `yes`."""
    if value in ("no", "off", "false"):
        return "no"
    return "accept-new" if value == "accept-new" else "yes"


def _seconds(value: str) -> float | None:
    """A time of ssh_config(5): seconds, or numbers with units such as 1m30s; None for none."""
    parts = re.findall(r"(\d+)([smhdw]?)", value.lower())
    scale = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    return float(sum(int(n) * scale[unit] for n, unit in parts)) or None


def _hop(text: str) -> Ssh:
    """`[user@]host[:port]`, with brackets around an IPv6 literal that has a port."""
    user, _, rest = text.removeprefix("ssh://").rpartition("@")
    bracketed = re.fullmatch(r"\[(.*)\](?::(\d+))?", rest)
    named = re.fullmatch(r"([^:]*)(?::(\d+))?", rest)
    match = bracketed or named
    host, port = match.groups() if match else (rest, None)
    return Ssh(host=host, user=user or None, port=int(port) if port else None)


def _agent(value: str, tokens: dict[str, str]) -> str | None:
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:]) or None
    return path(value, tokens)


def path(text: str, tokens: dict[str, str]) -> str:
    """A file name of ssh_config: with ~, %-tokens and ${VARIABLE} expanded."""
    if text == "~" or text.startswith("~/"):
        text = home() + text[1:]
    elif text.startswith("~"):
        text = str(Path(text).expanduser())
    return re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], m[0]), expand(text, tokens))


def expand(text: str, tokens: dict[str, str]) -> str:
    """Replace %-tokens; an unknown one stays."""
    return re.sub(r"%(.)", lambda m: tokens.get(m[1], m[0]), text)


def _tokens(
    alias: str, hostname: str, port: int, user: str, host_key_alias: str | None, *, jump: str
) -> dict[str, str]:
    """ssh_config(5), TOKENS."""
    here = socket.gethostname()
    digest = hashlib.sha1(f"{here}{hostname}{port}{user}{jump}".encode(), usedforsecurity=False)
    return {
        "%": "%",
        "C": digest.hexdigest(),
        "d": home(),
        "h": hostname,
        "i": str(os.getuid()),
        "j": jump,
        "k": host_key_alias or alias,
        "L": here.partition(".")[0],
        "l": here,
        "n": alias,
        "p": str(port),
        "r": user,
        "u": local_user(),
    }
