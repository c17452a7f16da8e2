"""Asks a node through our deputy there (see launch/deputy.py): many questions, one interpreter that starts.

The deputy is started with the first question, on the first Python that is fit, and lives as long as the
connection. When it is ended, the questions that are under way fail, and the next one starts another. When the
connection breaks, the next one fails as well: so whoever asks seldom hears of it too.
"""

from __future__ import annotations

import json
import shlex
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vdisagg.errors import Failure, Unreachable
from vdisagg.launch import deputy, pythons
from vdisagg.launch.way import CLOSE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from vdisagg.launch.way import Connection, Talk

Answer = TypeVar("Answer")

ARRIVE_LIMIT_S = 20.0  # an interpreter starts; home directories on network file systems are slow
GRACE_S = (
    2.0  # past its limit, until a question that the network does not take breaks the connection
)

SILENCE_S = 300.0  # whoever is still there asks more often, or starts another one

BOOT = """\
import os, sys
if sys.version_info < (3, 8):
    sys.exit(9)
text, size = b"", int(sys.argv[1])
while len(text) < size:
    piece = os.read(0, size - len(text))
    if not piece:
        sys.exit(1)
    text += piece
exec(compile(text.decode(), "deputy.py", "exec"))
"""
"""Runs on any Python; one that is too old reads nothing."""


class Completed(msgspec.Struct, frozen=True):
    """How a step ended."""

    code: int
    stdout: str
    stderr: str


class NoPython(Failure):
    """The node has no Python that is fit; `tried` says what was tried."""

    def __init__(self, node: str, tried: str) -> None:
        self.tried = tried
        super().__init__(
            f"{node}: no Python 3.8 or later was found there ({tried}); next: install python3 there, or "
            f"set `python:` of nodes.{node}"
        )


class Dialogue:
    """What one node is asked. Safe to use from several threads."""

    def __init__(self, connection: Connection, node: str, pythons: Sequence[str]) -> None:
        """`pythons`: what is tried, in this order."""
        self._connection = connection
        self._node = node
        self._pythons = tuple(pythons)
        self._deputy: _Deputy | None = None
        self._late: list[_Deputy] = []
        self._starting = threading.Lock()

    def run(
        self,
        module: ModuleType,
        *words: str,
        stdin: str = "",
        limit_s: float,
        along: Sequence[ModuleType] = (),
    ) -> Completed:
        """Run a module of ours on the node with these words, as a process of its own; wait for its end.

        `along`: those of ours that it imports. Raises NoPython; Unreachable when the connection breaks or
        the limit passes (the process then goes on over there); Failure where the deputy is ended.
        """
        asked = self._there()
        try:
            return asked.ask((*along, module), words, stdin, limit_s)
        finally:
            self._forget(asked)

    def arrive(self) -> str:
        """Start the deputy if it isn't there; its interpreter. Raises as `run` does."""
        return self._there().python

    def follow(self, module: ModuleType, *words: str) -> Iterator[str]:
        """A module's output as it comes, until the iterator is closed. A deputy with nothing to do gives its
        session up for it: sshd may allow few (MaxSessions)."""
        python = self.arrive()
        if self._deputy is not None and not self._deputy.is_asked:
            self.close()
        text = Path(module.__file__ or "").read_text()
        return self._connection.lines((python, "-I", "-S", "-c", text, *words))

    def close(self) -> None:
        """Let the deputy go; the next question starts another one."""
        with self._starting:
            for one in (*self._late, *((self._deputy,) if self._deputy is not None else ())):
                one.close()
            self._late.clear()
            self._deputy = None

    def _there(self) -> _Deputy:
        with self._starting:
            if self._deputy is not None and self._deputy.has_left:
                self._deputy.close()
                self._deputy = None
            if self._deputy is None:
                self._deputy = self._start()
            return self._deputy

    def _forget(self, asked: _Deputy) -> None:
        """Start another the next time, if this one is no more, or leaves questions open."""
        with self._starting:
            if self._deputy is not asked or not (asked.is_over or asked.is_late):
                return
            if asked.is_over:
                asked.close()
            else:
                self._late.append(asked)  # others may still wait for it
            self._deputy = None

    def _start(self) -> _Deputy:
        text = Path(deputy.__file__).read_text().encode()
        boot = shlex.join(("-I", "-S", "-c", BOOT, str(len(text)), str(SILENCE_S)))
        script = pythons.script(fit=f'"$python" {boot}', then="exit 0")
        talk = self._connection.talk(("sh", "-c", script, "sh", *self._pythons))
        started = _Deputy(self._node, talk)
        try:
            talk.send(text, limit_s=ARRIVE_LIMIT_S)
            started.arrived()
        except Failure:
            started.close()
            raise
        return started


class _Deputy:
    """One deputy, from its start to its end."""

    def __init__(self, node: str, talk: Talk) -> None:
        self.python = ""
        self._node = node
        self._talk = talk
        self._hello: Future[str] = Future()
        self._asked: dict[int, Future[Completed]] = {}
        self._known: set[str] = set()
        self.is_late = False
        """Whether it has left a question without an answer."""
        self._over: Failure | None = None
        self._count = 0
        self._changing = threading.Lock()
        self._sending = threading.Lock()
        self._listener = threading.Thread(
            target=self._listen, name=f"deputy on {node}", daemon=True
        )
        self._listener.start()

    @property
    def is_over(self) -> bool:
        return self._over is not None

    @property
    def has_left(self) -> bool:
        """Whether it was ended, over a connection that holds."""
        return self.is_over and not isinstance(self._over, Unreachable)

    @property
    def is_asked(self) -> bool:
        return bool(self._asked)

    def arrived(self) -> None:
        """Wait until it says that it is there. Raises Failure."""
        self.python = self._wait(self._hello, ARRIVE_LIMIT_S, "the start of Python")

    def ask(
        self, modules: Sequence[ModuleType], words: Sequence[str], stdin: str, limit_s: float
    ) -> Completed:
        answer: Future[Completed] = Future()
        what = f"{modules[-1].__name__.rpartition('.')[2]}.py {' '.join(words)}"
        with self._changing:
            if self._over is not None:
                raise self._over
            self._count += 1
            number = self._count
            self._asked[number] = answer
        question: dict[str, object] = {
            "id": number,
            "module": modules[-1].__name__,
            "words": words,
            "stdin": stdin,
        }
        try:
            self._send(modules, question, limit_s + GRACE_S)
        except Unreachable as exc:
            self._end(exc)
            raise
        return self._wait(answer, limit_s, what)

    def _send(
        self, modules: Sequence[ModuleType], question: dict[str, object], limit_s: float
    ) -> None:
        """A question, and before it the modules that are not there yet."""
        with self._sending:
            fresh = {m.__name__: m for m in modules if m.__name__ not in self._known}
            texts = {name: Path(m.__file__ or "").read_text() for name, m in fresh.items()}
            told = (*(({"sources": texts},) if texts else ()), question)
            data = "".join(f"{json.dumps(each)}\n" for each in told)
            self._talk.send(data.encode(), limit_s=limit_s)
            self._known |= set(fresh)

    def close(self) -> None:
        self._talk.close()
        self._listener.join(CLOSE_S)

    def _wait(self, asked: Future[Answer], limit_s: float, what: str) -> Answer:
        try:
            return asked.result(limit_s)
        except TimeoutError:
            self.is_late = True
            self._talk.suspect()
            short = what if len(what) <= 80 else f"{what[:80]}…"
            raise Unreachable(
                f"{self._node}: `{short}` did not end within {limit_s:g} s; next: look what holds it there"
            ) from None

    def _listen(self) -> None:
        strange: list[str] = []
        try:
            for line in self._talk.lines():
                if not line.startswith("{"):
                    strange.append(line)
                    if self._hello.done():
                        break  # it was ended, and the script is about to try another Python
                elif self._hello.done():
                    self._take(json.loads(line))
                else:
                    self._hello.set_result(json.loads(line)["deputy"])
            self._talk.close()
            self._end(self._why(strange))
        except Failure as exc:
            self._end(exc)

    def _take(self, answer: dict[str, object]) -> None:
        with self._changing:
            asked = self._asked.pop(int(str(answer.pop("id"))))
        asked.set_result(msgspec.convert(answer, Completed))

    def _why(self, strange: Sequence[str]) -> Failure:
        said = self._talk.stderr[-2000:]
        if not self._hello.done():
            return NoPython(self._node, "; ".join(filter(None, (*strange, said))) or "no answer")
        detail = f" ({said})" if said else ""
        return Failure(f"{self._node}: what does our work there was ended{detail}; next: try again")

    def _end(self, why: Failure) -> None:
        with self._changing:
            self._over = self._over or why
            waiting, self._asked = list(self._asked.values()), {}
            if not self._hello.done():
                self._hello.set_exception(why)
        for one in waiting:
            one.set_exception(why)
