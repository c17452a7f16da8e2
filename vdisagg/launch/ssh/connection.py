"""One authenticated connection to a node: commands, lines and forwarded ports, each in time.

paramiko waits without end in several places: for the answer to a request, for room in a socket that
nobody reads. Where it does, a timer closes the connection, which wakes all who wait. Besides, a
keepalive asks the node for an answer every few seconds, and a node that gives none is given up.
"""

from __future__ import annotations

import codecs
import contextlib
import random
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import paramiko

from vdisagg.errors import Failure, Unreachable
from vdisagg.launch.ssh import shell
from vdisagg.launch.ssh.deadline import Deadline, at_most, back_off
from vdisagg.launch.ssh.forward import Forwards
from vdisagg.launch.ssh.talk import Talk

CHANNELS = 8  # sshd's MaxSessions is 10 by default; two are left for others
GRACE_S = 2.0  # past a step's limit, until the connection is given up together with the step
CLOSE_S = 3.0
FORWARD_S = 10.0
OPEN_S = 20.0
CHUNK = 65536
LOOK_S = 0.5  # the longest wait between two looks at a channel

_BROKEN = (paramiko.SSHException, EOFError, OSError)


class Completed(msgspec.Struct, frozen=True):
    """What came of a command."""

    code: int
    stdout: str
    stderr: str


class Connection:
    """Safe to use from several threads. Every method raises Unreachable where the connection is broken."""

    def __init__(
        self,
        node: str,
        transports: Sequence[paramiko.Transport],
        *,
        keepalive_s: float,
        keepalive_count: int,
        environment: Sequence[tuple[str, str]] = (),
        after_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`transports`: jump hosts first, each in a channel of the one before; the last is the node's.
        `environment`: for commands, as far as sshd takes it (AcceptEnv)."""
        self.node = node
        self._transports = tuple(transports)
        self._transport = transports[-1]
        self._slots = threading.BoundedSemaphore(CHANNELS)
        self._requests = threading.Lock()  # paramiko knows one global request at a time
        self._forwards = Forwards()
        self._environment = tuple(environment)
        self._after_close = after_close
        self._closing = threading.Event()
        self._fault = ""
        self._keepalive = threading.Thread(
            target=self._keep_alive,
            args=(keepalive_s, keepalive_s * keepalive_count),
            name=f"ssh keepalive {node}",
            daemon=True,
        )
        self._keepalive.start()

    # -- commands -------------------------------------------------------------------------------

    def run(self, words: Sequence[str], *, limit_s: float) -> Completed:
        """Run a command on the node, with its login shell's environment and no input, and wait for its end.

        Raises Unreachable when the connection breaks or the limit passes; a command that has no end
        then goes on over there.
        """
        token = secrets.token_hex(16)
        deadline = Deadline(limit_s)
        with (
            at_most(
                limit_s + GRACE_S, lambda: self._give_up(f"{_short(words)} got no answer in time")
            ),
            self._channel(deadline) as channel,
        ):
            self._exec(channel, shell.command(words, token), max(deadline.left_s, GRACE_S))
            with contextlib.suppress(
                *_BROKEN
            ):  # it has ended; what it has said is still to be read
                _end_input(channel)
            streams = shell.Stream(token), shell.Stream(token)
            own: tuple[list[bytes], list[bytes]] = [], []
            for pieces in self._pieces(channel):
                for stream, collected, piece in zip(streams, own, pieces, strict=True):
                    collected.append(stream.feed(piece))
                if all(stream.code is not None for stream in streams):
                    break
                if deadline.left_s == 0:
                    raise Unreachable(
                        f"{self.node}: `{_short(words)}` did not end within {limit_s:g} s; next: look "
                        "what holds it there"
                    )
            code = streams[0].code
            if code is None:
                raise self._no_end(words, streams[0])
            stdout, stderr = (b"".join(parts).decode(errors="replace") for parts in own)
            return Completed(code, stdout, stderr)

    def lines(self, words: Sequence[str]) -> Iterator[str]:
        """Lines of a command's standard output until it ends.

        Closing the iterator ends the command, and so does the end of the connection.
        """
        token = secrets.token_hex(16)
        with self._channel(Deadline(OPEN_S)) as channel:
            self._exec(channel, shell.watched_command(words, token), OPEN_S)
            stdout = shell.Stream(token)
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            rest = ""
            for out, _ in self._pieces(channel):
                *whole, rest = (rest + decoder.decode(stdout.feed(out))).split("\n")
                yield from whole
                if stdout.code is not None:
                    break
            else:
                raise self._no_end(words, stdout)
            if rest:
                yield rest

    def talk(self, words: Sequence[str]) -> Talk:
        """Start a command that is spoken to for as long as it lives, and takes one of the channels that there
        may be at once."""
        token = secrets.token_hex(16)
        with contextlib.ExitStack() as stack:
            channel = stack.enter_context(self._channel(Deadline(OPEN_S)))
            self._exec(channel, shell.command(words, token), OPEN_S)
            return Talk(_Way(self, words), channel, token, stack.pop_all().close)

    def _exec(self, channel: paramiko.Channel, line: str, limit_s: float) -> None:
        try:
            with at_most(limit_s, lambda: self._give_up("a command was not begun in time")):
                for name, value in self._environment:
                    channel.set_environment_variable(name, value)
                channel.exec_command(line)
        except _BROKEN as exc:
            if not self._transport.is_active():
                raise self._broken() from exc
            raise Unreachable(
                f"{self.node}: sshd refused to run a command; next: look at its log there (out of "
                "processes or memory?)"
            ) from exc

    def _pieces(self, channel: paramiko.Channel) -> Iterator[tuple[bytes, bytes]]:
        """What comes in on standard output and error, both read as they fill. A pair of empty pieces comes
        every LOOK_S. Ends with the channel."""
        news = threading.Event()
        channel.in_buffer.set_event(news)
        channel.in_stderr_buffer.set_event(news)
        while True:
            # Before reading: what came before the end is then read for certain.
            ended = bool(channel.closed or channel.eof_received)
            try:
                out = channel.recv(CHUNK) if channel.recv_ready() else b""
                err = channel.recv_stderr(CHUNK) if channel.recv_stderr_ready() else b""
            except _BROKEN as exc:
                raise self._broken() from exc
            yield out, err
            if not (out or err):
                if ended:
                    return
                news.wait(LOOK_S)

    def _no_end(self, words: Sequence[str], stdout: shell.Stream) -> Unreachable:
        """The channel has closed without the marker of a command's end."""
        if not self._transport.is_active():
            return self._broken()
        said = stdout.noise.decode(errors="replace").strip()[-300:]
        return Unreachable(
            f"{self.node}: `{_short(words)}` was cut short, or the login shell did not run it"
            f"{f' (it said: {said})' if said else ''}; next: `ssh` there by hand; the user needs a login "
            "shell that runs commands"
        )

    # -- channels -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _channel(self, deadline: Deadline) -> Iterator[paramiko.Channel]:
        """One of the channels that there may be at once, closed at the end."""
        if not self._slots.acquire(timeout=deadline.left_s):
            raise Unreachable(
                f"{self.node}: {CHANNELS} commands at once are running there, and none ended within "
                f"{deadline.limit_s:g} s; next: try again"
            )
        try:
            channel = self._open(deadline)
            try:
                yield channel
            finally:
                with (
                    contextlib.suppress(*_BROKEN),
                    at_most(GRACE_S, lambda: self._give_up("the network takes nothing any more")),
                ):
                    channel.close()
        finally:
            self._slots.release()

    def _open(self, deadline: Deadline) -> paramiko.Channel:
        """Open a session, again and again while sshd has too many of them (MaxSessions)."""
        refused: Exception | None = None
        for wait_s in back_off(random.Random()):
            if not self._transport.is_active():
                raise self._broken()
            try:
                return self._transport.open_session(timeout=max(deadline.left_s, 0.1))
            except _BROKEN as exc:
                if not self._transport.is_active():
                    raise self._broken() from exc
                if "Timeout" not in str(exc):
                    refused = exc
                elif refused is None:
                    raise Unreachable(
                        f"{self.node}: no answer within {deadline.limit_s:g} s; next: is the machine up "
                        "and the network there? Then run the command again"
                    ) from exc
                if deadline.left_s < wait_s:
                    raise Unreachable(
                        f"{self.node}: sshd there opened no session within {deadline.limit_s:g} s "
                        f"({refused}); next: raise MaxSessions in its sshd_config"
                    ) from exc
            time.sleep(wait_s)
        raise AssertionError("unreachable")

    # -- ports ----------------------------------------------------------------------------------

    def remote_forward(self, port: int, local_port: int) -> None:
        """Let connections to 127.0.0.1:`port` on the node come out at 127.0.0.1:`local_port` here,
        until the connection is closed. Raises Failure where sshd refuses."""
        self._forwards.add(port, local_port)
        try:
            with (
                self._requests,
                at_most(FORWARD_S, lambda: self._give_up("a forwarding got no answer in time")),
            ):
                self._transport.request_port_forward("127.0.0.1", port, self._forwards.accept)
        except _BROKEN as exc:
            self._forwards.drop(port)
            if not self._transport.is_active():
                raise self._broken() from exc
            raise Failure(
                f"{self.node}: sshd there does not listen on 127.0.0.1:{port} for us; next: is the port "
                "taken, or AllowTcpForwarding off in its sshd_config?"
            ) from exc

    def try_forward(self, port: int) -> None:
        """As remote_forward, and undo it at once: would sshd do it? Raises Failure where it refuses."""
        self.remote_forward(port, port)
        try:
            with (
                self._requests,
                at_most(FORWARD_S, lambda: self._give_up("a forwarding was not ended in time")),
            ):
                self._transport.cancel_port_forward("127.0.0.1", port)
        except _BROKEN as exc:
            raise self._broken() from exc
        finally:
            self._forwards.drop(port)

    # -- life -----------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the connection is there, as far as is known."""
        return self._transport.is_active()

    def close(self) -> None:
        """End the connection and all that runs through it; takes a few seconds at most."""
        self._closing.set()
        with at_most(CLOSE_S, self._cut):
            for transport in reversed(self._transports):
                transport.close()
        self._forwards.close()
        for thread in (self._keepalive, *self._transports):
            thread.join(CLOSE_S)
        self._after_close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_alive(self, interval_s: float, limit_s: float) -> None:
        def give_up() -> None:
            self._give_up(f"no sign of life for {interval_s + limit_s:g} s")

        while not self._closing.wait(interval_s) and self._transport.is_active():
            with self._requests, at_most(limit_s, give_up), contextlib.suppress(*_BROKEN):
                self._transport.global_request("keepalive@openssh.com", wait=True)

    def _give_up(self, fault: str) -> None:
        if self._transport.is_active():
            self._fault = self._fault or fault
        self._cut()

    def _cut(self) -> None:
        """End all of it at once. The way's beginning first: the others would wait for it."""
        for transport in self._transports:
            transport.close()

    def _broken(self) -> Unreachable:
        if self._closing.is_set():
            return Unreachable(f"{self.node}: the connection has been closed here")
        reason = f": {self._fault}" if self._fault else ""
        return Unreachable(
            f"{self.node}: the SSH connection broke{reason}; next: is the machine up and the network "
            "there? Then run the command again"
        )


class _Way:
    """Implements ssh.talk.Way."""

    def __init__(self, connection: Connection, words: Sequence[str]) -> None:
        self._words = words
        self._connection = connection
        self.pieces = connection._pieces
        self.give_up = connection._give_up
        self.broken = connection._broken

    @property
    def alive(self) -> bool:
        return self._connection.alive

    def no_end(self, stdout: shell.Stream) -> Unreachable:
        return self._connection._no_end(self._words, stdout)


def _short(words: Sequence[str]) -> str:
    """A command for a message: its beginning, on one line."""
    text = " ".join(shlex.join(words).split())
    return text if len(text) <= 80 else f"{text[:80]}…"


def _end_input(channel: paramiko.Channel) -> None:
    """Send EOF, unless the channel has been closed.

    `Channel.shutdown_write` lets go of the channel's lock before it sends. A command that ends in that
    moment has its close answered by the transport's thread, EOF then follows for a channel that is no
    more, and sshd ends the whole connection. (Keys are exchanged anew after a gigabyte; should that be
    just now, both wait for each other until paramiko's limit, and the connection counts as broken.)
    """
    inside: Any = channel
    with inside.lock:
        message = None if inside.closed else inside._send_eof()
        if message is not None:
            inside.transport._send_user_message(message)
