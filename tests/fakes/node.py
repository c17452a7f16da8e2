"""A node without SSH: the same words, run on this machine in a home of the node's own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vdisagg.errors import Unreachable
from vdisagg.launch.pipes import PipeTalk


class FakeConnection:
    """Implements launch.way.Connection. While `cut` is set, every call fails as a broken link does."""

    def __init__(self, home: Path, name: str = "n1") -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.name = name
        self.path = os.environ["PATH"]
        self.cut = False
        self.closed = False
        self.sent: list[bytes] = []
        """All that has gone to the standard input of commands."""
        self.ran: list[tuple[str, ...]] = []
        """The commands."""

    def talk(self, words: Sequence[str]) -> FakeTalk:
        self.refuse_if_cut()
        return FakeTalk(self, words)

    def lines(self, words: Sequence[str]) -> Iterator[str]:
        self.refuse_if_cut()
        with contextlib.closing(PipeTalk(words, **self.place())) as talk:
            yield from talk.lines()

    def try_forward(self, port: int) -> None:
        self.refuse_if_cut()

    def close(self) -> None:
        self.closed = True

    def refuse_if_cut(self) -> None:
        if self.cut or self.closed:
            raise Unreachable(f"{self.name}: the connection is gone")

    def place(self) -> dict[str, Any]:
        environment = {"PATH": self.path, "HOME": str(self.home)}
        return {"environment": environment, "directory": self.home}


class FakeTalk(PipeTalk):
    """A command on the node that is spoken to."""

    def __init__(self, connection: FakeConnection, words: Sequence[str]) -> None:
        connection.ran.append(tuple(words))
        self._connection = connection
        super().__init__(words, **connection.place())

    def send(self, data: bytes, *, limit_s: float) -> None:
        self._connection.refuse_if_cut()
        self._connection.sent.append(data)
        super().send(data, limit_s=limit_s)
