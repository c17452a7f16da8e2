"""The runner for a node that is reached over a connection: the guard does there what has to be done.

What the node needs of us, three files of Python's standard library and the switches, is put into the
cluster's folder there, `<work_directory>/<cluster>/`, before the first call, where it isn't yet.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from vdisagg.cluster.admin import SOCKET_NAME
from vdisagg.errors import Failure, LaunchFailed, Unreachable
from vdisagg.launch import answers, guard, logfile, ports, pythons
from vdisagg.launch.far_controller import RELAY
from vdisagg.launch.local import NEVER, NO_FILES, START_LIMIT_S, SWITCHES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vdisagg.cluster.record import Started
    from vdisagg.cluster.snapshot import Observation
    from vdisagg.launch.runner import Found, Mark, Stopped
    from vdisagg.plan.model import Address, Node, Process, Restart

ARRIVE_LIMIT_S = 20.0  # two interpreters start; home directories on network file systems are slow
ASK_LIMIT_S = 10.0  # takes 0.1 s; a node that loads a model from disk may be slow to answer
TAIL_LIMIT_S = 30.0
STOP_MARGIN_S = guard.KILL_WAIT_S + guard.GUARD_WAIT_S + guard.KILL_WAIT_S + ASK_LIMIT_S

SWITCHES_FOLDER = ".switches"  # no instance's name begins with a dot
SOURCES: dict[str, Path] = {
    **{Path(f).name: Path(f) for f in (guard.__file__, logfile.__file__, ports.__file__)},
    **{f"{SWITCHES_FOLDER}/{module.name}": module for module in sorted(SWITCHES.glob("*.py"))},
}
"""What a node needs of us: path below the cluster's folder → the file here."""

INVENTORY = """\
import sys
if sys.version_info < (3, 8):
    sys.exit(9)
import hashlib, json, os
folder, found = os.path.expanduser(sys.argv[1]), {}
for name in sys.argv[2:]:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        pass
print(json.dumps({"python": sys.executable, "folder": folder, "files": found}))
"""
"""Runs on any Python: what is in our folder, and with which SHA-256."""

UNPACK = """\
import json, os, sys
for path, text in json.load(sys.stdin).items():
    path = os.path.expanduser(path)
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    part = "%s.part.%d" % (path, os.getpid())
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(part, path)
"""
"""Writes our files, each whole: one trip for all, where a file at a time would be one each."""


REMOVE = """\
import os, sys
for name in sys.argv[2:]:
    try:
        os.unlink(os.path.join(os.path.expanduser(sys.argv[1]), name))
    except FileNotFoundError:
        pass
"""


class Completed(Protocol):
    """How a command ended."""

    @property
    def code(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


class Connection(Protocol):
    """What a runner needs of a connection (see launch/ssh/connection.py). Calls raise Failure where
    it breaks or the limit passes. Safe to use from several threads."""

    def run(self, words: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        """Run a command there until it ends."""

    def lines(self, words: Sequence[str]) -> Iterator[str]:
        """A command's output as it comes; closing the iterator ends the command."""


class Tools(msgspec.Struct, frozen=True):
    """What is on the node for us to use."""

    python: str
    folder: str
    """The cluster's, absolute."""


class RemoteRunner:
    """Implements launch.runner.Runner for the node at the other end of a connection."""

    def __init__(self, connection: Connection, node: Node, mark: Mark) -> None:
        self._connection = connection
        self._node = node
        self._mark = mark
        self._folder = f"{node.work_directory.rstrip('/')}/{mark.cluster}"
        self._tools: Tools | None = None
        self._arriving = threading.Lock()

    def start(
        self,
        process: Process,
        secrets: Mapping[str, str],
        grace_s: float,
        files: Mapping[str, str] = NO_FILES,
        restart: Restart = NEVER,
    ) -> Started:
        tools = self._arrive()
        switches = f"{tools.folder}/{SWITCHES_FOLDER}"
        ticket = self._guard("ticket", process.directory)["ticket"]
        if files:
            own = process.directory
            self._unpack(tools.python, {f"{own}/{path}": text for path, text in files.items()})
        job = answers.job(process, secrets, grace_s, ticket, self._mark, switches, restart)
        answer = self._guard(
            "start", process.directory, stdin=json.dumps(job), limit_s=START_LIMIT_S
        )
        return answers.started(process, answer["started"])

    def observe(self, process: Process) -> Observation:
        return self.observe_all([process])[0]

    def observe_all(self, processes: Sequence[Process]) -> list[Observation]:
        return [answers.observation(seen) for seen in self._guard("observe", *_places(processes))]

    def stop(self, process: Process, grace_s: float) -> Stopped:
        return self.stop_all([process], grace_s)[0]

    def stop_all(self, processes: Sequence[Process], grace_s: float) -> list[Stopped]:
        words = ("stop", str(grace_s), *_places(processes))
        done = self._guard(*words, limit_s=grace_s + STOP_MARGIN_S)
        return [answers.stopped(one) for one in done]

    def remove(self, process: Process, names: Sequence[str]) -> None:
        python = self._arrive().python
        words = (python, "-I", "-S", "-c", REMOVE, process.directory, *names)
        done = self._connection.run(words, limit_s=ASK_LIMIT_S)
        if done.code:
            raise Failure((done.stderr.strip().splitlines() or ["it said nothing"])[-1])

    def find(self, folders: Sequence[str]) -> list[Found]:
        return [answers.found(one) for one in self._guard("find", *folders)]

    def tail(self, process: Process, lines: int, *, before: bool = False) -> list[str]:
        command = "tail-before" if before else "tail"
        words = self._words(logfile.__file__, command, process.directory, str(lines))
        done = self._connection.run(words, limit_s=TAIL_LIMIT_S)
        if done.code:
            raise Failure(
                f"{self._node.name}: {process.name}: its log cannot be read: {_why(done)}"
            )
        return done.stdout.removesuffix("\n").split("\n") if done.stdout else []

    def follow(self, process: Process, lines: int) -> Iterator[str]:
        words = self._words(logfile.__file__, "follow", process.directory, str(lines))
        yield from self._connection.lines(words)
        raise Unreachable(  # it never ends by itself
            f"{self._node.name}: what reads the log of {process.name} there was ended; next: ask again"
        )

    def relay(self, process: Process, line: str, limit_s: float) -> str:
        python = self._arrive().python
        words = (python, "-I", "-S", "-c", RELAY, process.directory, str(limit_s), SOCKET_NAME)
        done = self._connection.run(words, stdin=line, limit_s=limit_s + ASK_LIMIT_S)
        if done.code:
            raise Failure((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
        return done.stdout

    def busy_ports(self, addresses: Iterable[Address]) -> dict[Address, str]:
        asked = {(address.host, address.port): address for address in addresses}
        done = self._connection.run(
            self._words(ports.__file__), stdin=json.dumps(list(asked)), limit_s=ASK_LIMIT_S
        )
        if done.code:
            raise Failure(f"{self._node.name}: its ports cannot be looked at: {_why(done)}")
        return {asked[host, port]: who for host, port, who in json.loads(done.stdout)}

    def _guard(self, *words: str, stdin: str = "", limit_s: float = ASK_LIMIT_S) -> Any:
        """What the guard answers. Raises LaunchFailed where it answers with an error, or not at all."""
        done = self._connection.run(
            self._words(guard.__file__, *words), stdin=stdin, limit_s=limit_s
        )
        if guard.BEGIN not in done.stdout:
            raise LaunchFailed(f"{self._node.name}: the guard there failed: {_why(done)}")
        answer = json.loads(done.stdout.partition(guard.BEGIN)[2].partition(guard.END)[0])
        if isinstance(answer, dict) and "error" in answer:
            raise LaunchFailed(f"{self._node.name}: {answer['error']}")
        return answer

    def _words(self, source: str, *arguments: str) -> tuple[str, ...]:
        """The command that runs one of our files there."""
        tools = self._arrive()
        return (tools.python, "-I", "-S", f"{tools.folder}/{Path(source).name}", *arguments)

    def _arrive(self) -> Tools:
        """Find a Python there, and put in place what is not there in just this form; once."""
        with self._arriving:
            if self._tools is None:
                self._tools = self._look_around()
            return self._tools

    def _look_around(self) -> Tools:
        asking = shlex.join(("-I", "-S", "-c", INVENTORY, self._folder, *SOURCES))
        script = pythons.script(fit=f'"$python" {asking} 2>/dev/null', then="exit 0")
        words = ("sh", "-s", *pythons.candidates(self._node.python))
        done = self._connection.run(words, stdin=script, limit_s=ARRIVE_LIMIT_S)
        *unfit, last = done.stdout.splitlines() or [""]
        if done.code:
            tried = "; ".join(filter(None, (*unfit, last))) or _why(done)
            raise Failure(
                f"{self._node.name}: no Python 3.8 or later was found there ({tried}); next: install "
                f"python3 there, or set `python:` of nodes.{self._node.name}"
            )
        inventory = json.loads(last)
        folder, python = inventory["folder"], inventory["python"]
        wanted = {
            f"{folder}/{name}": path.read_text()
            for name, path in SOURCES.items()
            if inventory["files"].get(name) != hashlib.sha256(path.read_bytes()).hexdigest()
        }
        if wanted:
            self._unpack(python, wanted)
        return Tools(python=python, folder=folder)

    def _unpack(self, python: str, files: dict[str, str]) -> None:
        done = self._connection.run(
            (python, "-I", "-S", "-c", UNPACK), stdin=json.dumps(files), limit_s=ARRIVE_LIMIT_S
        )
        if done.code:
            said = (done.stderr.strip().splitlines() or [""])[-1]
            raise LaunchFailed(
                f"{self._node.name}: {self._folder} cannot be written there: {said}; next: make room or "
                f"give rights there, or set another `work_dir:` of nodes.{self._node.name}"
            )


def _places(processes: Sequence[Process]) -> list[str]:
    return [process.directory for process in processes]


def _why(done: Completed) -> str:
    said = done.stderr.strip() or done.stdout.strip()
    return f"exit code {done.code}{f', {said[-2000:]}' if said else ''}"
