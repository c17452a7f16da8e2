"""The runners of a plan's nodes: this machine, or one connection per node, made when first needed."""

from __future__ import annotations

import copy
import socket
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

from vdisagg.errors import Failure, Unreachable
from vdisagg.launch import pythons
from vdisagg.launch.background import at_once
from vdisagg.launch.cancel import Cancel
from vdisagg.launch.dialogue import Dialogue
from vdisagg.launch.local import LocalRunner
from vdisagg.launch.pipes import Here
from vdisagg.launch.remote import RemoteRunner
from vdisagg.launch.runner import Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from vdisagg.launch.runner import Runner
    from vdisagg.launch.way import Connection, Talk
    from vdisagg.plan.model import Node, Plan, Ssh

    class Closable(Connection, Protocol):
        """A connection that somebody owns."""

        def try_forward(self, port: int) -> None:
            """Have a port of the node lead here, and undo it at once. Raises Failure."""

        def close(self) -> None:
            """Let go of it."""

    Connect = Callable[[str, Ssh, float, Cancel], Closable]
    """(node, how to reach it, limit in seconds, what breaks it off) → an authenticated connection, or
    Unreachable."""

CONNECT_LIMIT_S = 20.0


def connect_by_ssh(node: str, ssh: Ssh, limit_s: float, cancel: Cancel) -> Closable:
    """The connections of real life."""
    from vdisagg.launch.ssh.connect import connect  # here: it takes 0.2 s to load, and few need it

    return connect(node, ssh, limit_s=limit_s, cancel=cancel)


class Nodes:
    """The runner of each node of a plan: `nodes(name)`. Close it, or use it with `with`."""

    def __init__(
        self,
        plan: Plan | None,
        state_directory: Path,
        *,
        connect_limit_s: float = CONNECT_LIMIT_S,
        connect: Connect = connect_by_ssh,
    ) -> None:
        """`plan`: None where nothing is recorded, so that nothing will be asked for."""
        self._mark = Mark(state_directory.name, socket.gethostname(), str(state_directory))
        self._connect_limit_s = connect_limit_s
        self._connect = connect
        self._nodes = _by_name(plan)
        self._local = LocalRunner(self._mark)
        # Not by name alone: a recorded plan may mean another machine by the same name. Nor by all of a
        # node: a plan before its addresses are looked up, and after, may share a line.
        self._lines: dict[tuple[str, Ssh], Line] = {}
        self._dialogues: dict[tuple[str, Ssh | None, str | None], Dialogue] = {}
        self._runners: dict[Node, Runner] = {}
        self._making = threading.Lock()

    def __call__(self, name: str) -> Runner:
        """The runner of a node of the plan. Connects to nobody yet."""
        node = self._nodes.get(name)
        if node is None or node.ssh is None:
            return self._local
        with self._making:
            if node not in self._runners:
                self._runners[node] = RemoteRunner(self._dialogue(node), node, self._mark)
            return self._runners[node]

    def of(self, plan: Plan) -> Nodes:
        """The same for another plan of this cluster; connections are shared where nodes are equal."""
        other = copy.copy(self)
        other._nodes = _by_name(plan)
        return other

    def dialogue(self, name: str) -> Dialogue:
        """What a node of the plan is asked through, and so is this machine. Connects to nobody yet."""
        with self._making:
            return self._dialogue(self._nodes[name])

    def try_forward(self, name: str, port: int) -> None:
        """Whether a tunnel from here could carry 127.0.0.1:`port` of a node that is reached by SSH. Raises
        Failure where sshd refuses, or the node can't be reached."""
        with self._making:
            line = self._line(self._nodes[name])
        line.open().try_forward(port)

    def close(self) -> None:
        """Let go of all connections, for good; one that is being made is broken off."""
        with self._making:
            # Lines first: that ends the wait for a node that does not answer.
            at_once({key: line.close for key, line in self._lines.items()})
            at_once({key: dialogue.close for key, dialogue in self._dialogues.items()})
            for known in (self._lines, self._dialogues, self._runners):
                known.clear()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _dialogue(self, node: Node) -> Dialogue:
        key = (node.name, node.ssh, node.python)
        if key not in self._dialogues:
            way = Here() if node.ssh is None else self._line(node)
            own = (sys.executable,) if node.ssh is None else ()
            tried = (*own, *pythons.candidates(node.python))
            self._dialogues[key] = Dialogue(way, node.name, tried)
        return self._dialogues[key]

    def _line(self, node: Node) -> Line:
        ssh = node.ssh
        assert ssh is not None
        name = node.name
        if (name, ssh) not in self._lines:
            connect = partial(self._connect, name, ssh, self._connect_limit_s)
            self._lines[name, ssh] = Line(name, connect)
        return self._lines[name, ssh]


def _by_name(plan: Plan | None) -> dict[str, Node]:
    return {node.name: node for node in plan.nodes} if plan is not None else {}


class Line:
    """A connection that is made when it is first used, and made anew after it broke, until it is closed."""

    def __init__(self, node: str, connect: Callable[[Cancel], Closable]) -> None:
        self._node = node
        self._connect = connect
        self._cancel = Cancel()
        self._current: Closable | None = None
        self._dropped: list[Closable] = []
        """Broken, yet other threads may still be using them; closed with the line."""
        self._connecting = threading.Lock()
        self._attempts = 0
        self._last_failure = ""

    def open(self) -> Closable:
        """The connection, made if need be.

        Raises Failure where it cannot be made. Who waits while another tries shares what comes of it.
        """
        attempts = self._attempts
        with self._connecting:
            if self._current is not None:
                return self._current
            if self._cancel.called:
                raise Unreachable(f"{self._node}: the connection has been closed here")
            if self._attempts != attempts and self._last_failure:
                raise Unreachable(self._last_failure)
            self._last_failure = ""
            try:
                self._current = self._connect(self._cancel)
            except Failure as exc:
                self._last_failure = str(exc)
                raise
            finally:
                self._attempts += 1
            return self._current

    def talk(self, words: Sequence[str]) -> Talk:
        connection = self.open()
        try:
            return _LineTalk(connection.talk(words), partial(self._drop, connection))
        except Unreachable:
            self._drop(connection)
            raise

    def lines(self, words: Sequence[str]) -> Iterator[str]:
        connection = self.open()
        try:
            yield from connection.lines(words)
        except Unreachable:
            self._drop(connection)
            raise

    def close(self) -> None:
        """Let go of what there is, for good."""
        self._cancel()
        with self._connecting:
            for connection in (*self._dropped, *((self._current,) if self._current else ())):
                connection.close()
            self._dropped.clear()
            self._current = None

    def _drop(self, connection: Closable) -> None:
        with self._connecting:
            if self._current is connection:
                self._current = None
                self._dropped.append(connection)


class _LineTalk:
    """Implements launch.way.Talk; a connection that is found broken is not used again."""

    def __init__(self, talk: Talk, drop: Callable[[], None]) -> None:
        self._talk = talk
        self._drop = drop

    def send(self, data: bytes, *, limit_s: float) -> None:
        try:
            self._talk.send(data, limit_s=limit_s)
        except Unreachable:
            self._drop()
            raise

    def lines(self) -> Iterator[str]:
        try:
            yield from self._talk.lines()
        except Unreachable:
            self._drop()
            raise

    @property
    def stderr(self) -> str:
        return self._talk.stderr

    def suspect(self) -> None:
        self._drop()

    def close(self) -> None:
        self._talk.close()
