"""The way to the first host: a TCP connection, or the pipe of a ProxyCommand."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import select
import signal
import socket
import subprocess
import tempfile
import threading
from typing import Any

from vdisagg.errors import Unreachable
from vdisagg.launch.ssh.deadline import Deadline
from vdisagg.launch.ssh.options import Options

_FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
PROXY_END_S = 2.0
LOOK_S = 0.2  # how often who waits for an answer looks whether anybody still wants it


def tcp(where: str, options: Options, deadline: Deadline) -> socket.socket:
    """Connect to the first address of a host that takes the connection. Raises Unreachable."""
    faults = []
    for family, _, _, _, address in _addresses(where, options, deadline):
        deadline.refuse_if_cancelled(where)
        limit_s = min(deadline.left_s, options.connect_timeout_s or deadline.limit_s)
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            if options.bind_address is not None:
                found.bind((options.bind_address, 0))
            _connect(found, address, limit_s, deadline)
        except OSError as exc:
            found.close()
            reason = (
                f"no answer in {limit_s:.0f} s" if isinstance(exc, TimeoutError) else exc.strerror
            )
            faults.append(f"{address[0]}: {reason or exc}")
            continue
        # Small packets both ways, each of which somebody waits for.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return found
    raise Unreachable(
        f"{where}: no connection to {options}: {'; '.join(faults)}; next: is the machine up, does sshd "
        "listen there, and does a firewall let it through?"
    )


def _connect(found: socket.socket, address: Any, limit_s: float, deadline: Deadline) -> None:
    """As socket.connect with a timeout, but for a wait that can be cancelled. Raises OSError."""
    own = Deadline(limit_s, deadline.cancel)
    found.setblocking(False)
    code = found.connect_ex(address)
    if code == errno.EINPROGRESS:
        waiting = select.poll()
        waiting.register(found, select.POLLOUT)
        while not waiting.poll(min(LOOK_S, own.left_s) * 1000):
            if own.left_s == 0:
                raise TimeoutError
        code = found.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    found.setblocking(True)
    if code:
        raise OSError(code, os.strerror(code))


def _addresses(where: str, options: Options, deadline: Deadline) -> list[Any]:
    """getaddrinfo, which knows no timeout, in a thread of its own."""
    answer: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            family = _FAMILIES[options.address_family]
            answer.put(
                list(socket.getaddrinfo(options.hostname, options.port, family, socket.SOCK_STREAM))
            )
        except OSError as exc:
            answer.put(exc)
        except UnicodeError as exc:
            answer.put(OSError(0, str(exc)))

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    try:
        with deadline.cancel.wakes(lambda: answer.put(OSError(0, "broken off here"))):
            found = answer.get(timeout=deadline.left_s)
    except queue.Empty:
        found = OSError(0, f"no answer in {deadline.limit_s:.0f} s")
    if isinstance(found, OSError):
        raise Unreachable(
            f"{where}: the name {options.hostname} cannot be resolved: {found.strerror}; "
            "next: correct it, or give HostName in ~/.ssh/config"
        ) from found
    return found


class Proxy:
    """A ProxyCommand that runs; `socket` is its standard input and output."""

    def __init__(self, command: str) -> None:
        self.command = command
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives until close()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                start_new_session=True,  # without a terminal, so that it can ask nobody
            )

    def said(self) -> str:
        """What it wrote to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().replace("\n", "; ")

    @property
    def cannot_run(self) -> bool:
        """Whether the shell could not run it at all."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(0.5) in (126, 127)
        return False

    def close(self) -> None:
        """End it, and all that it started in its session."""
        self.socket.close()
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PROXY_END_S)
                break
        self._errors.close()
