"""Logging in: the keys that there are, in the order in which they are tried, and what was wrong.

The order is OpenSSH's: what the agent holds of the IdentityFiles, the agent's other keys, then the files
by themselves. But a file that somebody named goes before the agent's other keys: a server hangs up after
a few wrong ones (sshd's MaxAuthTries). Nobody is ever asked for a passphrase.
"""

from __future__ import annotations

import base64
import binascii
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from vdisagg.errors import AuthenticationFailed, Unreachable
from vdisagg.launch.ssh.accepted import RSA, allowed, string, why_not
from vdisagg.launch.ssh.deadline import Deadline
from vdisagg.launch.ssh.options import Options

AGENT_LIMIT_S = 5.0  # for its list of keys; a signature may wait for a person, until our deadline
_MAGIC = b"openssh-key-v1\0"


class KeyFile(msgspec.Struct, frozen=True):
    """One IdentityFile, as far as it can be read without a passphrase."""

    path: str
    publics: tuple[bytes, ...] = ()
    """Its public key, a certificate for it first; empty where that cannot be told."""
    private: bool = False
    """Whether a private key is in it."""
    locked: bool = False
    """Whether that takes a passphrase."""


class Candidate(msgspec.Struct, frozen=True):
    """A key that can be tried."""

    label: str
    key: paramiko.PKey
    public: bytes


class Agent:
    """The keys of an SSH agent, and why there are none."""

    def __init__(self, path: str | None) -> None:
        self.state = "there is no SSH agent (SSH_AUTH_SOCK is not set)"
        self.keys: tuple[AgentKey, ...] = ()
        self._socket: socket.socket | None = None
        if path is None:
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(AGENT_LIMIT_S)
            self._socket.connect(path)
            held = _Wire(self._socket)
            self.keys = tuple(AgentKey(held, key.blob, key.comment) for key in held.get_keys())
        except (OSError, paramiko.SSHException, struct.error) as exc:
            self.state = f"the SSH agent at {path} does not answer ({exc})"
            return
        self.state = f"the SSH agent holds {len(self.keys) or 'no'} key{'s'[: len(self.keys) != 1]}"

    def set_limit(self, limit_s: float) -> None:
        """How long it may take over a signature."""
        if self._socket is not None:
            self._socket.settimeout(max(limit_s, 0.001))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class _Wire(paramiko.agent.AgentSSH):
    """The agent's protocol over a socket of our choice; paramiko's Agent takes SSH_AUTH_SOCK only."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__()
        self._connect(connected)  # type: ignore[attr-defined]  # its one entrance


class AgentKey(paramiko.AgentKey):
    """Remembers why the agent did not sign: paramiko gives up the whole connection for that."""

    fault = ""

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> paramiko.Message:  # type: ignore[override]
        try:
            return super().sign_ssh_data(data, algorithm)
        except (OSError, paramiko.SSHException, struct.error) as exc:
            self.fault = str(exc) or type(exc).__name__
            raise paramiko.SSHException("the agent did not sign") from exc


class AgentRefused(Exception):
    """The agent did not sign with a key, which cost us the connection: to be tried without it."""

    def __init__(self, candidate: Candidate, fault: str) -> None:
        super().__init__(f"{candidate.label}: {fault}")
        self.public = candidate.public


def read_file(path: str) -> KeyFile | None:
    """What an IdentityFile, and the public files beside it, tell. None: there are none of them."""
    content = _bytes_of(path)
    public = _public_line(_bytes_of(f"{path}.pub"))
    certificate = _public_line(_bytes_of(f"{path}-cert.pub"))
    private = b"PRIVATE KEY-----" in content
    locked = private and b"ENCRYPTED" in content
    if b"BEGIN OPENSSH PRIVATE KEY" in content:
        inside, locked = _openssh_header(content)
        public = public or inside
    elif not private:
        public = public or _public_line(content)
    if not (private or public):
        return None
    publics = tuple(blob for blob in (certificate, public) if blob)
    return KeyFile(path, publics, private, locked)


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _public_line(content: bytes) -> bytes:
    """The key in a file of one line: kind, base64, comment."""
    fields = content.split()
    if len(fields) < 2:
        return b""
    try:
        return base64.b64decode(fields[1], validate=True)
    except (ValueError, binascii.Error):
        return b""


def _openssh_header(content: bytes) -> tuple[bytes, bool]:
    """The public key in a private key file, and whether the private one takes a passphrase.

    OpenSSH's PROTOCOL.key: magic, cipher, kdf, kdf's options, number of keys, public key, …
    """
    body = content.partition(b"-----BEGIN OPENSSH PRIVATE KEY-----")[2].partition(b"-----END")[0]
    try:
        data = base64.b64decode(b"".join(body.split()), validate=True)
        cipher, rest = string(data.removeprefix(_MAGIC))
        _, rest = string(rest)
        _, rest = string(rest)
        public, _ = string(rest[4:])
    except (ValueError, binascii.Error, struct.error):
        return b"", False
    return public, cipher != b"none"


def _load(file: KeyFile) -> list[Candidate]:
    """The private key of a file: first with the certificate beside it, where there is one."""
    if not file.private or file.locked:
        return []
    try:
        key = paramiko.PKey.from_path(file.path)
        found = [Candidate(file.path, key, key.asbytes())]
        if key.public_blob is not None:
            plain = paramiko.PKey.from_path(file.path)
            plain.public_blob = None
            found = [
                Candidate(f"{file.path} with its certificate", key, key.public_blob.key_blob),
                Candidate(file.path, plain, plain.asbytes()),
            ]
    except _UNREADABLE:
        return []
    return found


_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,  # cryptography's for a key with a passphrase
    UnsupportedAlgorithm,
    paramiko.SSHException,
    paramiko.pkey.UnknownKeyType,
)


def order(options: Options, files: Sequence[KeyFile], agent: Sequence[AgentKey]) -> list[Candidate]:
    """All keys that can be tried, in that order."""
    by_public = {key.blob: key for key in agent}
    held = [
        Candidate(f"{file.path} (agent)", by_public[blob], blob)
        for file in files
        for blob in file.publics
        if blob in by_public
    ]
    have = {candidate.public for candidate in held}
    own = [c for file in files for c in _load(file) if c.public not in have]
    have |= {candidate.public for candidate in own}
    others = [
        Candidate(f"{key.comment or key.get_name()} (agent)", key, key.blob)
        for key in agent
        if key.blob not in have and not options.identities_only
    ]
    if options.identities_named:
        return [*held, *own, *others]
    return [*held, *others, *own]


def authenticate(
    where: str,
    options: Options,
    transport: paramiko.Transport,
    deadline: Deadline,
    without: frozenset[bytes] = frozenset(),
) -> None:
    """Log in over a transport whose host key has been checked.

    `without`: public keys with which the agent did not sign before. Raises AuthenticationFailed,
    AgentRefused, or Unreachable.
    """
    files = [file for path in options.identity_files if (file := read_file(path)) is not None]
    with _agent(options.agent) as agent:
        found = [c for c in order(options, files, agent.keys) if c.public not in without]
        barred = {c.label: why for c in found if (why := _why_not(options, c))}
        found = [c for c in found if c.label not in barred]
        trial = _Trial(where, options, files, agent.state, len(without), barred)
        if not found:
            raise trial.nothing_to_try()
        for candidate in found:
            agent.set_limit(deadline.left_s)
            transport.auth_timeout = deadline.left_s
            if trial.lets_in(transport, candidate):
                return
    raise trial.none_accepted()


def _why_not(options: Options, candidate: Candidate) -> str:
    return why_not(candidate.public, options.key_algorithms, options.required_rsa_bits)


@contextmanager
def _agent(path: str | None) -> Iterator[Agent]:
    agent = Agent(path)
    try:
        yield agent
    finally:
        agent.close()


class _Trial:
    """The attempts at one host, and the words for how they ended."""

    def __init__(
        self,
        where: str,
        options: Options,
        files: Sequence[KeyFile],
        agent: str,
        refused: int,
        barred: Mapping[str, str],
    ) -> None:
        self._login = f"{where}: {options}"
        self._options = options
        self._files = files
        self._agent = agent
        self._refused = refused
        self._barred = "".join(f"; {label} was not tried: {why}" for label, why in barred.items())
        self._tried: list[str] = []

    def lets_in(self, transport: paramiko.Transport, candidate: Candidate) -> bool:
        """Try one key; False: try the next."""
        user = self._options.user
        self._tried.append(candidate.label)
        may = allowed(candidate.public, self._options.key_algorithms)
        transport.disabled_algorithms = {"pubkeys": [name for name in RSA if name not in may]}
        try:
            further = transport.auth_publickey(user, candidate.key)
        except paramiko.BadAuthenticationType as exc:
            raise AuthenticationFailed(
                f"{self._login} takes no keys from {user}, only {', '.join(exc.allowed_types)}; next: "
                "set `PubkeyAuthentication yes` in its sshd_config, or use another user"
            ) from exc
        except (paramiko.SSHException, EOFError, OSError) as exc:
            if isinstance(candidate.key, AgentKey) and candidate.key.fault:
                raise AgentRefused(candidate, candidate.key.fault) from exc
            if not transport.is_active():
                raise self._hung_up() from exc
            if not isinstance(exc, paramiko.AuthenticationException) or "timeout" in str(exc):
                raise Unreachable(
                    f"{self._login} did not answer to {candidate.label}; next: look at sshd's log there"
                ) from exc
            return False
        if further and "publickey" not in further:
            raise AuthenticationFailed(
                f"{self._login} wants {' or '.join(further)} of {user} beside a key, which takes a "
                "person; next: let this user in with a key alone, or through a shared ProxyCommand"
            )
        return not further

    def nothing_to_try(self) -> AuthenticationFailed:
        locked = [file.path for file in self._files if file.locked]
        if locked:
            return AuthenticationFailed(
                f"{self._login}: the key {', '.join(locked)} is locked with a passphrase, and "
                f"{self._agent}{self._barred}; next: {self._unlock(locked)}"
            )
        if self._barred:
            return AuthenticationFailed(
                f"{self._login}: no key to log in with{self._barred}; next: let ssh_config allow it for this "
                "host, or name another key with identity_file"
            )
        looked = ", ".join(self._options.identity_files) or "no IdentityFile"
        state = self._agent
        if self._refused:
            state = "the SSH agent did not sign with any of its keys"
        return AuthenticationFailed(
            f"{self._login}: no key to log in with: {state}, and no key that can be used is in {looked}; "
            "next: start an agent and `ssh-add` a key, or name one with identity_file"
        )

    def none_accepted(self) -> AuthenticationFailed:
        options = self._options
        locked = [file.path for file in self._files if file.locked and not self._was_tried(file)]
        port = f" -p {options.port}" if options.port != 22 else ""
        advice = [
            f"is {options.user} the right user?",
            f"`ssh-copy-id{port} {options.user}@{options.hostname}` adds a key",
        ]
        if locked:
            advice.append(
                f"{', '.join(locked)} is locked and was not tried: {self._unlock(locked)}"
            )
        return AuthenticationFailed(
            f"{self._login} did not let in user {options.user} with any of these keys: "
            f"{', '.join(self._tried)}{self._barred}; next: {'; '.join(advice)}"
        )

    def _hung_up(self) -> AuthenticationFailed | Unreachable:
        if len(self._tried) < 2:
            return Unreachable(
                f"{self._login} hung up while user {self._options.user} logged in with "
                f"{self._tried[0]}; next: look at sshd's log there"
            )
        return AuthenticationFailed(
            f"{self._login} hung up on user {self._options.user} after too many attempts, with the keys "
            f"{', '.join(self._tried)}; next: name the right key with IdentityFile and set "
            "`IdentitiesOnly yes` for this host in ~/.ssh/config, or name it as identity_file in the topology"
        )

    def _was_tried(self, file: KeyFile) -> bool:
        return any(label.startswith(file.path) for label in self._tried)

    def _unlock(self, files: Sequence[str]) -> str:
        add = f"`ssh-add {' '.join(files)}`"
        return (
            add if "agent holds" in self._agent else f"start one (`eval $(ssh-agent)`), then {add}"
        )
