"""The runner for a node that is reached over a connection: the guard does there what has to be done.

Nothing of ours has to be there before: what does it arrives with the first question (see launch/dialogue.py).
The switches alone are written into the cluster's folder, `<work_directory>/<cluster>/`, for the guards.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from vdisagg.cluster.admin import SOCKET_NAME
from vdisagg.errors import Failure, LaunchFailed, Occupied, Unreachable
from vdisagg.launch import answers, errands, guard, logfile, ports
from vdisagg.launch.local import NEVER, NO_FILES, START_LIMIT_S, SWITCHES
from vdisagg.launch.runner import NOTHING_STARTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vdisagg.cluster.record import Started
    from vdisagg.cluster.snapshot import Observation
    from vdisagg.launch.dialogue import Completed, Dialogue
    from vdisagg.launch.runner import Found, Mark, Stopped
    from vdisagg.plan.model import Address, Node, Process, Restart

ASK_LIMIT_S = 10.0  # takes 0.1 s; a node that loads a model from disk may be slow to answer
WRITE_LIMIT_S = 20.0
TAIL_LIMIT_S = 30.0
STOP_MARGIN_S = guard.KILL_WAIT_S + guard.GUARD_WAIT_S + guard.KILL_WAIT_S + ASK_LIMIT_S

SWITCHES_FOLDER = ".switches"  # no instance's name begins with a dot


class RemoteRunner:
    """Implements launch.runner.Runner for the node at the other end of a dialogue."""

    def __init__(self, dialogue: Dialogue, node: Node, mark: Mark) -> None:
        self._dialogue = dialogue
        self._node = node
        self._mark = mark
        self._folder = f"{node.work_directory.rstrip('/')}/{mark.cluster}"
        self._has_switches = False
        self._writing = threading.Lock()

    def start(
        self,
        process: Process,
        secrets: Mapping[str, str],
        grace_s: float,
        files: Mapping[str, str] = NO_FILES,
        restart: Restart = NEVER,
    ) -> Started:
        ticket = self._ticket(process)
        switches = self._switches() if process.switches else ""
        if files:
            self._write(process.directory, files)
        job = answers.job(process, secrets, grace_s, ticket, self._mark, switches, restart)
        answer = self._guard(
            "start", process.directory, stdin=json.dumps(job), limit_s=START_LIMIT_S
        )
        return answers.started(process, answer["started"])

    def observe(self, process: Process) -> Observation:
        return self.observe_all([process])[0]

    def observe_all(
        self, processes: Sequence[Process], started: Mapping[str, Started] = NOTHING_STARTED
    ) -> list[Observation]:
        told = json.dumps(answers.starts(processes, started))
        seen = self._guard("observe", *_places(processes), stdin=told)
        return [answers.observation(one) for one in seen]

    def stop(
        self,
        process: Process,
        grace_s: float,
        started: Mapping[str, Started] = NOTHING_STARTED,
    ) -> Stopped:
        return self.stop_all([process], grace_s, started)[0]

    def stop_all(
        self,
        processes: Sequence[Process],
        grace_s: float,
        started: Mapping[str, Started] = NOTHING_STARTED,
    ) -> list[Stopped]:
        words = ("stop", str(grace_s), *_places(processes))
        told = json.dumps(answers.starts(processes, started))
        done = self._guard(*words, stdin=told, limit_s=grace_s + STOP_MARGIN_S)
        return [answers.stopped(one) for one in done]

    def remove(self, process: Process, names: Sequence[str]) -> None:
        self._errand("remove", process.directory, *names, limit_s=ASK_LIMIT_S)

    def find(self, folders: Sequence[str]) -> list[Found]:
        return [answers.found(one) for one in self._guard("find", *folders)]

    def tail(self, process: Process, lines: int, *, before: bool = False) -> list[str]:
        command = "tail-before" if before else "tail"
        words = (command, process.directory, str(lines))
        done = self._dialogue.run(logfile, *words, limit_s=TAIL_LIMIT_S)
        if done.code:
            raise Failure(
                f"{self._node.name}: {process.name}: its log cannot be read: {_why(done)}"
            )
        return done.stdout.removesuffix("\n").split("\n") if done.stdout else []

    def follow(self, process: Process, lines: int) -> Iterator[str]:
        yield from self._dialogue.follow(logfile, "follow", process.directory, str(lines))
        raise Unreachable(  # it never ends by itself
            f"{self._node.name}: what reads the log of {process.name} there was ended; next: ask again"
        )

    def relay(self, process: Process, line: str, limit_s: float) -> str:
        words = ("relay", process.directory, SOCKET_NAME, str(limit_s))
        return self._errand(*words, stdin=line, limit_s=limit_s + ASK_LIMIT_S)

    def busy_ports(self, addresses: Iterable[Address]) -> dict[Address, str]:
        asked = {(address.host, address.port): address for address in addresses}
        done = self._dialogue.run(ports, stdin=json.dumps(list(asked)), limit_s=ASK_LIMIT_S)
        if done.code:
            raise Failure(f"{self._node.name}: its ports cannot be looked at: {_why(done)}")
        return {asked[host, port]: who for host, port, who in json.loads(done.stdout)}

    def _ticket(self, process: Process) -> str:
        try:
            ticket: str = self._guard("ticket", process.directory)["ticket"]
        except _Refused as exc:
            raise self._cannot_be_written(exc.reason) from exc
        return ticket

    def _switches(self) -> str:
        """The folder there that holds them, for guards to copy; written once, all of them or none."""
        folder = f"{self._folder}/{SWITCHES_FOLDER}"
        with self._writing:
            if not self._has_switches:
                modules = sorted(SWITCHES.glob("*.py"))
                self._write(folder, {module.name: module.read_text() for module in modules})
                self._has_switches = True
        return folder

    def _write(self, directory: str, files: Mapping[str, str]) -> None:
        try:
            self._errand("write", directory, stdin=json.dumps(files), limit_s=WRITE_LIMIT_S)
        except _Refused as exc:
            raise self._cannot_be_written(exc.reason) from exc

    def _cannot_be_written(self, reason: str) -> LaunchFailed:
        return LaunchFailed(
            f"{self._node.name}: {self._folder} cannot be written there: {reason}; next: make room or "
            f"give rights there, or set another `work_dir:` of nodes.{self._node.name}"
        )

    def _errand(self, *words: str, stdin: str = "", limit_s: float) -> str:
        done = self._dialogue.run(errands, *words, stdin=stdin, limit_s=limit_s)
        if done.code:
            raise _Refused((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
        return done.stdout

    def _guard(self, *words: str, stdin: str = "", limit_s: float = ASK_LIMIT_S) -> Any:
        """What the guard answers. Raises LaunchFailed where it answers with an error, or not at all."""
        done = self._dialogue.run(guard, *words, stdin=stdin, limit_s=limit_s)
        if guard.BEGIN not in done.stdout:
            raise LaunchFailed(f"{self._node.name}: the guard there failed: {_why(done)}")
        answer = json.loads(done.stdout.partition(guard.BEGIN)[2].partition(guard.END)[0])
        if isinstance(answer, dict) and "error" in answer:
            if answer.get("occupied"):
                raise Occupied(f"{self._node.name}: {answer['error']}")
            raise _Refused(answer["error"], self._node.name)
        return answer


class _Refused(LaunchFailed):
    """The node itself says why something was not done."""

    def __init__(self, reason: str, node: str = "") -> None:
        self.reason = reason
        super().__init__(f"{node}: {reason}" if node else reason)


def _places(processes: Sequence[Process]) -> list[str]:
    return [process.directory for process in processes]


def _why(done: Completed) -> str:
    said = done.stderr.strip() or done.stdout.strip()
    return f"exit code {done.code}{f', {said[-2000:]}' if said else ''}"
