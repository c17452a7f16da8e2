"""Host keys: what known_hosts files say about a host, and what to think of the key that it shows.

As OpenSSH does it (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT), but for two things: nobody is asked, and a
key that differs from the known one is refused even with `StrictHostKeyChecking no`.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from vdisagg.errors import HostKeyRefused
from vdisagg.launch.ssh.accepted import RSA, rsa_bits
from vdisagg.launch.ssh.options import PORT, Options

Verdict = Literal["known", "unknown", "changed", "revoked", "certified"]


class Entry(msgspec.Struct, frozen=True):
    """One line of a known_hosts file."""

    file: str
    line: int
    marker: str
    """Empty, `@revoked` or `@cert-authority`."""
    hosts: str
    kind: str
    key: bytes

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def is_for(self, name: str) -> bool:
        """Whether the line is about a host, by what known_hosts calls it."""
        if self.hosts.startswith("|1|"):
            return _is_hash_of(name, self.hosts)
        found = False
        for pattern in self.hosts.lower().split(","):
            wanted = _without_classes(pattern.removeprefix("!"))
            if fnmatch.fnmatchcase(name.lower(), wanted):
                if pattern.startswith("!"):
                    return False
                found = True
        return found


class HostKey(msgspec.Struct, frozen=True):
    """A public key, in SSH's wire format."""

    kind: str
    key: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _without_classes(pattern: str) -> str:
    """OpenSSH's patterns know * and ? only: `[` stands for itself, as in `[host]:2222`."""
    return pattern.replace("[", "[[]")


def _is_hash_of(name: str, hashed: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        wanted = base64.b64decode(digest)
        key = base64.b64decode(salt)
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.digest(key, name.lower().encode(), "sha1"), wanted)


def parse(file: str, text: str) -> list[Entry]:
    """The entries of a known_hosts file; lines that make no sense are passed over."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except (ValueError, binascii.Error):
            continue
        entries.append(Entry(file, number, marker, fields[0], fields[1], key))
    return entries


def read(files: Iterable[str]) -> list[Entry]:
    """The entries of all these files; those that do not exist, or may not be read, have none."""
    entries = []
    for file in files:
        try:
            text = Path(file).read_text(errors="replace")
        except OSError:
            continue
        entries += parse(file, text)
    return entries


class Known(msgspec.Struct, frozen=True):
    """What is known of one host."""

    name: str
    entries: tuple[Entry, ...]
    """Those for its name."""
    plain: tuple[Entry, ...] = ()
    """Those for the host without the port. OpenSSH takes such a key too, if it is the same one, where
    the name with the port is not known."""

    def order(self, algorithms: Sequence[str]) -> tuple[str, ...]:
        """Host key algorithms with those first for which a key is known.

        So a host that is known by one kind of key is asked for that one.
        """
        kinds = {e.kind for e in (self.entries or self.plain) if not e.marker}
        wanted = {a for kind in kinds for a in (RSA if kind == "ssh-rsa" else (kind,))}
        first = [a for a in algorithms if a in wanted]
        return (*first, *(a for a in algorithms if a not in wanted))

    def judge(self, shown: HostKey) -> Verdict:
        """What to think of the key that the host shows."""
        same = [e for e in (*self.entries, *self.plain) if e.key == shown.key]
        if any(e.marker == "@revoked" for e in same):
            return "revoked"
        own = [e for e in self.entries if not e.marker]
        if any(e.key == shown.key for e in own):
            return "known"
        if own:
            return "changed"
        if any(e.marker == "@cert-authority" for e in self.entries):
            return "certified"
        return "known" if any(not e.marker for e in same) else "unknown"


def known(options: Options) -> Known:
    """Read what is known of a host from its files."""
    entries = read((*options.user_known_hosts, *options.global_known_hosts))
    name = options.host_key_name
    with_port = options.host_key_alias is None and options.port != PORT
    return Known(
        name,
        tuple(e for e in entries if e.is_for(name)),
        tuple(e for e in entries if with_port and e.is_for(options.hostname)),
    )


def check(where: str, options: Options, host: Known, shown: HostKey, *, direct: bool) -> None:
    """Return if the key may be trusted; `direct`: the host is dialled from this machine.

    With `StrictHostKeyChecking` `accept-new` or `no` an unknown key is written down and trusted.
    Raises HostKeyRefused.
    """
    bits = rsa_bits(shown.key)
    if bits is not None and bits < options.required_rsa_bits:
        raise HostKeyRefused(
            f"{where}: the host key of {host.name}, {_describe(shown)}, has {bits} bits, RequiredRSASize of "
            f"ssh_config is {options.required_rsa_bits}; next: give the host a longer key, or one of another kind"
        )
    verdict = host.judge(shown)
    if verdict == "known":
        return
    if verdict == "unknown" and options.strict_host_key_checking != "yes":
        _remember(options, shown)
        return
    raise HostKeyRefused(_REFUSALS[verdict](where, options, host, shown, direct))


def line_for(name: str, shown: HostKey, *, salt: bytes | None = None) -> str:
    """A line for known_hosts; with a salt of 20 bytes the name is hashed."""
    if salt is not None:
        digest = hmac.digest(salt, name.lower().encode(), "sha1")
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    return f"{name} {shown.kind} {base64.b64encode(shown.key).decode()}"


def _remember(options: Options, shown: HostKey) -> None:
    """Append to the first of the user's files. OpenSSH goes on too where it cannot write."""
    if not options.user_known_hosts:
        return
    salt = os.urandom(20) if options.hash_known_hosts else None
    file = Path(options.user_known_hosts[0])
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        text = line_for(options.host_key_name, shown, salt=salt) + "\n"
        if file.is_file() and not _ends_with_newline(file):
            text = "\n" + text
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w") as known_hosts:
            known_hosts.write(text)
    except OSError:
        return


def _ends_with_newline(file: Path) -> bool:
    content = file.read_bytes()
    return not content or content.endswith(b"\n")


def _describe(shown: HostKey) -> str:
    return f"{shown.kind} {shown.fingerprint}"


def _unknown(where: str, options: Options, host: Known, shown: HostKey, direct: bool) -> str:
    file = (options.user_known_hosts or ("~/.ssh/known_hosts",))[0]
    if direct and options.host_key_alias is None:
        port = "" if options.port == PORT else f"-p {options.port} "
        fix = f"ssh-keyscan -t {_scan_kind(shown.kind)} {port}{options.hostname} >> {file}"
    else:  # ssh-keyscan knows no jump hosts and no aliases
        fix = f"echo '{line_for(host.name, shown)}' >> {file}"
    return (
        f"{where}: the host key of {host.name} is not known: {_describe(shown)}; next: compare the "
        f"fingerprint with the host's own (there: ssh-keygen -lf /etc/ssh/ssh_host_"
        f"{_scan_kind(shown.kind)}_key.pub), then: {fix}"
    )


def _scan_kind(kind: str) -> str:
    return "ecdsa" if kind.startswith("ecdsa") else kind.removeprefix("ssh-")


def _changed(where: str, options: Options, host: Known, shown: HostKey, direct: bool) -> str:
    before = [e for e in host.entries if not e.marker]
    places = ", ".join(f"{e.place} ({e.kind} {fingerprint(e.key)})" for e in before)
    removals = "; ".join(
        f"ssh-keygen -R '{host.name}' -f {file}" for file in dict.fromkeys(e.file for e in before)
    )
    return (
        f"{where}: the host key of {options.hostname} port {options.port} has changed: it shows "
        f"{_describe(shown)}, known as {host.name} is {places}. The machine was set up anew, or "
        f"somebody sits in between; next: ask who runs it, and if the new key is right: {removals}"
    )


def _revoked(where: str, options: Options, host: Known, shown: HostKey, direct: bool) -> str:
    revoked = (e for e in (*host.entries, *host.plain) if e.marker == "@revoked")
    place = next(e.place for e in revoked if e.key == shown.key)
    return (
        f"{where}: the host key of {options.hostname} port {options.port}, {_describe(shown)}, is "
        f"revoked in {place}; next: ask who runs the machine for a new key"
    )


def _certified(where: str, options: Options, host: Known, shown: HostKey, direct: bool) -> str:
    place = next(e.place for e in host.entries if e.marker == "@cert-authority")
    return (
        f"{where}: {host.name} is known by a certificate authority only (@cert-authority in {place}), "
        f"which is not supported; next: compare the fingerprint of its own key, {_describe(shown)}, "
        f"then: echo '{line_for(host.name, shown)}' >> "
        f"{(options.user_known_hosts or ('~/.ssh/known_hosts',))[0]}"
    )


_REFUSALS = {
    "unknown": _unknown,
    "changed": _changed,
    "revoked": _revoked,
    "certified": _certified,
}
