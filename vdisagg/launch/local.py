"""The runner for this machine: the guard as a subprocess for a start, as a module for the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING

from vdisagg.cluster.record import LOG_FILE, SWITCHES_DIRECTORY, Started
from vdisagg.cluster.snapshot import Observation
from vdisagg.errors import LaunchFailed
from vdisagg.launch import guard, ports
from vdisagg.launch.runner import Stopped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from vdisagg.plan.model import Address, Process

SWITCHES = Path(__file__).parent / "switches"
START_LIMIT_S = 30.0  # a start takes 0.1 s; a machine that swaps may need longer
FOLLOW_POLL_S = 0.2
MOST_LINES = 1_000_000  # held in memory at once


class LocalRunner:
    """Implements launch.runner.Runner for the machine that we run on."""

    def start(self, process: Process, secrets: Mapping[str, str], grace_s: float) -> Started:
        directory = _directory(process)
        try:
            ticket = guard.issue_ticket(directory)
            if process.switches:
                switches = directory / SWITCHES_DIRECTORY
                switches.mkdir(mode=0o700, exist_ok=True)
                for module in SWITCHES.glob("*.py"):
                    shutil.copyfile(module, switches / module.name)
        except OSError as exc:
            raise LaunchFailed(
                f"{process.name}: {exc.filename}: {exc.strerror}; "
                "next: make the directory writable, or set another in the topology"
            ) from exc
        job = {
            "name": process.name,
            "argv": process.argv,
            "env": {**process.env, **secrets},
            "cwd": str(directory),
            "grace_s": grace_s,
            "ticket": ticket,
        }
        answer = _read_answer(process, _run_guard(process, json.dumps(job)))
        if "error" in answer:
            raise LaunchFailed(str(answer["error"]))
        started = answer["started"]
        assert isinstance(started, dict)
        return Started(
            directory=process.directory,
            **{k: started[k] for k in Started.__struct_fields__ if k != "directory"},
        )

    def observe(self, process: Process) -> Observation:
        seen = guard.observe(_directory(process))
        seen.pop("process")
        return Observation(**{**seen, "members": tuple(seen["members"])})

    def stop(self, process: Process, grace_s: float) -> Stopped:
        done = guard.stop(_directory(process), grace_s)
        return Stopped(ended=tuple(done["ended"]), left=tuple(done["left"]))

    def tail(self, process: Process, lines: int) -> list[str]:
        try:
            with (_directory(process) / LOG_FILE).open(errors="replace") as log:
                return [line.rstrip("\n") for line in deque(log, maxlen=lines)]
        except FileNotFoundError:
            return []

    def follow(self, process: Process, lines: int) -> Iterator[str]:
        path = _directory(process) / LOG_FILE
        while True:
            try:
                log = path.open(errors="replace")
            except FileNotFoundError:
                lines = MOST_LINES  # a log that begins while we watch is shown from its first line
                time.sleep(FOLLOW_POLL_S)
                continue
            with log:
                yield from _lines_until_replaced(path, log, lines)
            lines = MOST_LINES

    def busy_ports(self, addresses: Iterable[Address]) -> dict[Address, str]:
        return ports.busy(addresses)


def _directory(process: Process) -> Path:
    return Path(process.directory).expanduser()


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


def _read_answer(process: Process, output: str) -> dict[str, object]:
    text = output.partition(guard.BEGIN)[2].partition(guard.END)[0]
    answer = json.loads(text)
    assert isinstance(answer, dict), f"the guard of {process.name} said {text!r}"
    return answer


def _lines_until_replaced(path: Path, log: IO[str], lines: int) -> Iterator[str]:
    """The last whole lines, then more as they come, until another file has taken the log's place."""
    own = os.fstat(log.fileno()).st_ino
    begun = ""
    last: deque[str] = deque(maxlen=min(lines, MOST_LINES))
    while True:
        replaced = _inode(path) != own  # asked before reading: what came until then is still read
        for piece in iter(log.readline, ""):
            begun += piece
            if begun.endswith("\n"):
                last.append(begun.rstrip("\n"))
                begun = ""
        yield from last
        last = deque()
        if replaced:
            if begun:
                yield begun
            return
        time.sleep(FOLLOW_POLL_S)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
