"""The way to an authenticated connection: every hop dialled, its host key checked, logged in."""

from __future__ import annotations

import logging
import random
import socket
import threading
from pathlib import Path

import paramiko

from vdisagg.errors import Unreachable
from vdisagg.launch.cancel import Cancel
from vdisagg.launch.ssh import dial, hostkeys, keys
from vdisagg.launch.ssh.connection import Connection
from vdisagg.launch.ssh.deadline import Deadline, back_off
from vdisagg.launch.ssh.options import Options, route
from vdisagg.plan.model import Ssh

# Python prints warnings of a library that nobody listens to; all of them come back to us as exceptions.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_BROKEN = (paramiko.SSHException, EOFError, OSError)


class _Busy(Exception):
    """A host hung up before it said who it is, as sshd does when too many log in (MaxStartups)."""


def connect(
    node: str,
    ssh: Ssh,
    *,
    limit_s: float = 20.0,
    config: Path | None = None,
    cancel: Cancel | None = None,
) -> Connection:
    """Connect and log in, by way of the user's ssh_config, within a limit in seconds.

    `config`: a file in place of the user's and the system's, as `ssh -F`. `cancel` breaks it off. Raises
    SshOptionRefused, HostKeyRefused, AuthenticationFailed or Unreachable.
    """
    deadline = Deadline(limit_s, cancel)
    hops = route(node, ssh, config)
    without: frozenset[bytes] = frozenset()
    waits = back_off(random.Random())
    busy: _Busy | None = None
    while True:
        try:
            return _Attempt(node, hops, deadline, without).connection()
        except keys.AgentRefused as exc:
            without |= {exc.public}
        except Unreachable as exc:
            if busy is None or deadline.left_s or deadline.cancel.called:
                raise
            raise _refused(busy, limit_s) from exc  # the last try had no time for its own reason
        except _Busy as exc:
            busy = exc
            wait_s = next(waits)
            if deadline.left_s < wait_s and not deadline.cancel.called:
                raise _refused(exc, limit_s) from exc
            deadline.cancel.wait(wait_s)


def _refused(busy: _Busy, limit_s: float) -> Unreachable:
    return Unreachable(
        f"{busy}, again and again for {limit_s:g} s; next: raise MaxStartups in its "
        "sshd_config, or look whether it bans us (PerSourcePenalties, fail2ban)"
    )


class _Attempt:
    """One try at the whole way."""

    def __init__(
        self, node: str, hops: tuple[Options, ...], deadline: Deadline, without: frozenset[bytes]
    ) -> None:
        self._node = node
        self._hops = hops
        self._deadline = deadline
        self._without = without
        self._proxy: dial.Proxy | None = None
        self._transports: list[paramiko.Transport] = []

    def connection(self) -> Connection:
        last = self._hops[-1]
        try:
            with self._deadline.cancel.wakes(self._break_off):
                for options in self._hops:
                    self._go_on_to(options)
        except BaseException:
            for transport in self._transports:
                transport.close()
                transport.sock.close()  # which close() leaves to the thread, where there is one
            self._end_proxy()
            raise
        return Connection(
            self._node,
            self._transports,
            keepalive_s=last.keepalive_s,
            keepalive_count=last.keepalive_count,
            environment=last.environment,
            after_close=self._end_proxy,
        )

    def _break_off(self) -> None:
        """End the wait for any host. The way's beginning first: the others would wait for it."""
        for transport in tuple(self._transports):
            transport.close()

    def _go_on_to(self, options: Options) -> None:
        where = (
            self._node if options is self._hops[-1] else f"{self._node}: jump host {options.alias}"
        )
        self._deadline.refuse_if_cancelled(where)
        direct = not self._transports and options.proxy_command is None
        way: socket.socket | paramiko.Channel
        if self._transports:
            way = self._tunnel(where, options)
        elif options.proxy_command is not None:
            self._proxy = dial.Proxy(options.proxy_command)
            way = self._proxy.socket
        else:
            way = dial.tcp(where, options, self._deadline)
        known = hostkeys.known(options)
        transport = self._greet(where, options, way, known)
        key = transport.get_remote_server_key()
        shown = hostkeys.HostKey(key.get_name(), key.asbytes())
        hostkeys.check(where, options, known, shown, direct=direct)
        keys.authenticate(where, options, transport, self._deadline, self._without)

    def _tunnel(self, where: str, options: Options) -> paramiko.Channel:
        """A connection to the next hop, made by the one before."""
        target, source = (options.hostname, options.port), ("127.0.0.1", 0)
        transport = self._transports[-1]
        try:
            return transport.open_channel(
                "direct-tcpip", target, source, timeout=max(self._deadline.left_s, 0.1)
            )
        except _BROKEN as exc:
            before = self._hops[len(self._transports) - 1]
            raise Unreachable(
                f"{where}: no connection from the jump host {before.alias} to {options}: {exc}; next: can "
                f"{before.alias} reach it, and does its sshd_config allow it (AllowTcpForwarding)?"
            ) from exc

    def _greet(
        self,
        where: str,
        options: Options,
        way: socket.socket | paramiko.Channel,
        known: hostkeys.Known,
    ) -> paramiko.Transport:
        """Exchange versions and keys."""
        transport = paramiko.Transport(way)
        self._transports.append(transport)
        transport.daemon = True
        _set_algorithms(where, options, transport, known)
        limit_s = max(self._deadline.left_s, 0.1)
        transport.banner_timeout = transport.handshake_timeout = limit_s
        done = threading.Event()
        transport.start_client(done)
        with self._deadline.cancel.wakes(done.set):
            begun = done.wait(limit_s)
        self._deadline.refuse_if_cancelled(where)
        if not begun:
            raise Unreachable(
                f"{where}: {options} took the connection, and did not greet within {limit_s:.0f} s; next: "
                "is sshd there alive, and is it sshd that listens on this port?"
            )
        if transport.is_active():
            return transport
        self._raise_why(where, options, transport)
        raise AssertionError("unreachable")

    def _raise_why(self, where: str, options: Options, transport: paramiko.Transport) -> None:
        """Say why a host and we did not come to terms."""
        fault = transport.get_exception()
        if isinstance(fault, paramiko.ssh_exception.IncompatiblePeer):
            raise Unreachable(
                f"{where}: {options} and we have no algorithm in common: {fault}; next: allow a modern one "
                "in its sshd_config, or in Ciphers, MACs, KexAlgorithms of ~/.ssh/config"
            ) from fault
        said = ""
        if self._proxy is not None and len(self._transports) == 1:
            cannot_run, said = self._proxy.cannot_run, self._proxy.said()
            if cannot_run:
                raise Unreachable(
                    f"{where}: the ProxyCommand `{self._proxy.command}` cannot be run: {said}; next: "
                    "correct it in ~/.ssh/config"
                ) from fault
            said = f" (its ProxyCommand says: {said})" if said else ""
        if not transport.remote_version or isinstance(fault, EOFError | ConnectionError):
            raise _Busy(f"{where}: {options} hung up before the login{said}") from fault
        raise Unreachable(
            f"{where}: no SSH connection to {options}: {fault}{said}; next: is it sshd that listens there?"
        ) from fault

    def _end_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None


def _set_algorithms(
    where: str, options: Options, transport: paramiko.Transport, known: hostkeys.Known
) -> None:
    """Offer what both paramiko has and the configuration allows; host keys that are known first."""
    offered = transport.get_security_options()

    def common(have: tuple[str, ...], allowed: tuple[str, ...], name: str) -> tuple[str, ...]:
        both = tuple(one for one in have if not allowed or one in allowed)
        if not both:
            raise Unreachable(
                f"{where}: ssh_config allows only such {name} as are not supported here "
                f"({', '.join(allowed)}); next: allow one of {', '.join(have)}"
            )
        return both

    offered.ciphers = common(tuple(offered.ciphers), options.ciphers, "Ciphers")
    offered.digests = common(tuple(offered.digests), options.macs, "MACs")
    offered.kex = common(tuple(offered.kex), options.key_exchanges, "KexAlgorithms")
    kinds = common(tuple(offered.key_types), options.host_key_algorithms, "HostKeyAlgorithms")
    offered.key_types = known.order(kinds)
