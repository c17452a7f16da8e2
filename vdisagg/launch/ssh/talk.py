"""A command on a node that stays, and is spoken to: bytes go in, lines come out."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

import paramiko

from vdisagg.launch.ssh import shell
from vdisagg.launch.ssh.deadline import at_most
from vdisagg.launch.way import MOST_STDERR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vdisagg.errors import Unreachable


_BROKEN = (paramiko.SSHException, EOFError, OSError)


class Way(Protocol):
    """What it needs of the connection that it goes through (see ssh/connection.py)."""

    @property
    def alive(self) -> bool: ...
    def pieces(self, channel: paramiko.Channel) -> Iterator[tuple[bytes, bytes]]: ...
    def give_up(self, fault: str) -> None: ...
    def broken(self) -> Unreachable: ...
    def no_end(self, stdout: shell.Stream) -> Unreachable: ...


class Talk:
    """Implements launch.way.Talk. One thread reads; any may send, one at a time."""

    def __init__(
        self, way: Way, channel: paramiko.Channel, token: str, close: Callable[[], object]
    ) -> None:
        """`close` gives the channel back."""
        self._way = way
        self._channel = channel
        self._streams = shell.Stream(token), shell.Stream(token)
        self._stderr = ""
        self._close = close

    def send(self, data: bytes, *, limit_s: float) -> None:
        try:
            with at_most(limit_s, lambda: self._way.give_up("the network takes nothing any more")):
                self._channel.sendall(data)
        except _BROKEN as exc:
            if not self._way.alive:
                raise self._way.broken() from exc
            # Else the command has ended, which `lines` tells.

    def lines(self) -> Iterator[str]:
        stdout, stderr = self._streams
        decoders = [codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in self._streams]
        rest: list[str] = []  # of a line, which may be long
        for out, err in self._way.pieces(self._channel):
            own = stderr.feed(err)
            self._stderr = (self._stderr + decoders[1].decode(own))[-MOST_STDERR:]
            *whole, last = decoders[0].decode(stdout.feed(out)).split("\n")
            for text in whole:
                yield "".join((*rest, text))
                rest = []
            rest.append(last)
            if stdout.code is not None and stderr.code is not None:
                return
        if stdout.code is None:
            raise self._way.no_end(stdout)

    @property
    def stderr(self) -> str:
        return self._stderr.strip()

    def suspect(self) -> None:
        """Whoever made the connection may make another."""

    def close(self) -> None:
        self._close()
