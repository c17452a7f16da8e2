"""The runner for this machine: the guard as a subprocess for a start, as a module for the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vdisagg.cluster.admin import exchange
from vdisagg.errors import Failure, LaunchFailed, Occupied
from vdisagg.launch import answers, guard, logfile, ports
from vdisagg.launch.runner import NOTHING_STARTED
from vdisagg.plan.model import Restart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vdisagg.cluster.record import Started
    from vdisagg.cluster.snapshot import Observation
    from vdisagg.launch.runner import Found, Mark, Stopped
    from vdisagg.plan.model import Address, Process

SWITCHES = Path(__file__).parent / "switches"
NO_FILES: Mapping[str, str] = MappingProxyType({})
NEVER = Restart(policy="never")
START_LIMIT_S = 30.0  # a start takes 0.1 s; a machine that swaps may need longer


class LocalRunner:
    """Implements launch.runner.Runner for the machine that we run on."""

    def __init__(self, mark: Mark | None = None) -> None:
        self._mark = mark

    def start(
        self,
        process: Process,
        secrets: Mapping[str, str],
        grace_s: float,
        files: Mapping[str, str] = NO_FILES,
        restart: Restart = NEVER,
    ) -> Started:
        directory = _directory(process)
        try:
            ticket = guard.issue_ticket(directory)
            for path, text in files.items():
                (directory / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (directory / path).write_text(text)
        except OSError as exc:
            raise LaunchFailed(
                f"{process.name}: {exc.filename or directory}: {exc.strerror}; "
                "next: make the directory writable, or set another in the topology"
            ) from exc
        job = answers.job(process, secrets, grace_s, ticket, self._mark, str(SWITCHES), restart)
        answer = _read_answer(process, _run_guard(process, json.dumps(job)))
        if "error" in answer:
            raise (Occupied if answer.get("occupied") else LaunchFailed)(str(answer["error"]))
        return answers.started(process, answer["started"])

    def observe(self, process: Process) -> Observation:
        return self.observe_all([process])[0]

    def observe_all(
        self, processes: Sequence[Process], started: Mapping[str, Started] = NOTHING_STARTED
    ) -> list[Observation]:
        seen = guard.observe_all(_directories(processes), _starts(processes, started))
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
        done = guard.stop_all(_directories(processes), grace_s, _starts(processes, started))
        return [answers.stopped(one) for one in done]

    def remove(self, process: Process, names: Sequence[str]) -> None:
        try:
            for name in names:
                (_directory(process) / name).unlink(missing_ok=True)
        except OSError as exc:
            raise Failure(f"{exc.filename}: {exc.strerror}") from exc

    def find(self, folders: Sequence[str]) -> list[Found]:
        try:
            found = guard.find([Path(folder).expanduser() for folder in folders])
        except OSError as exc:
            raise Failure(f"{exc.filename}: {exc.strerror}") from exc
        return [answers.found(one) for one in found]

    def tail(self, process: Process, lines: int, *, before: bool = False) -> list[str]:
        name = logfile.OLD_LOG_FILE if before else logfile.LOG_FILE
        return logfile.tail(_directory(process), lines, name)

    def follow(self, process: Process, lines: int) -> Iterator[str]:
        return logfile.follow(_directory(process), lines)

    def relay(self, process: Process, line: str, limit_s: float) -> str:
        try:
            answer = exchange(_directory(process), line.encode(), timeout_s=limit_s)
        except OSError as exc:
            raise Failure(str(exc)) from exc
        return answer.decode()

    def busy_ports(self, addresses: Iterable[Address]) -> dict[Address, str]:
        return ports.busy(addresses)


def _directory(process: Process) -> Path:
    return Path(process.directory).expanduser()


def _directories(processes: Sequence[Process]) -> list[Path]:
    return [_directory(process) for process in processes]


def _starts(
    processes: Sequence[Process], started: Mapping[str, Started]
) -> dict[str, dict[str, Any]]:
    """What is recorded of these processes' starts, by directory as `_directories` has them."""
    told = answers.starts(processes, started)
    return {str(Path(directory).expanduser()): one for directory, one in told.items()}


def _run_guard(process: Process, job: str) -> str:
    command = [sys.executable, "-I", "-S", guard.__file__, "start", str(_directory(process))]
    try:
        done = subprocess.run(
            command,
            input=job,
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
            start_new_session=True,  # a Ctrl-C at the terminal must not hit a half-done start
        )
    except subprocess.TimeoutExpired as exc:
        raise LaunchFailed(
            f"{process.name}: its guard did not answer within {START_LIMIT_S:.0f} s; "
            f"next: look at {process.directory}/{guard.GUARD_LOG_FILE}"
        ) from exc
    if guard.BEGIN not in done.stdout:
        raise LaunchFailed(f"{process.name}: its guard failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _read_answer(process: Process, output: str) -> dict[str, Any]:
    text = output.partition(guard.BEGIN)[2].partition(guard.END)[0]
    answer = json.loads(text)
    assert isinstance(answer, dict), f"the guard of {process.name} said {text!r}"
    return answer
