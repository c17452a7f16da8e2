"""The guard: starts one process, and again when it has failed; keeps its log, pid and exit code, and
ends its whole group.

This one file is all of ours that runs beside a stock process. It travels to nodes (launch/deputy.py), so
it knows only the standard library and Python 3.8. Each subcommand prints one JSON value between markers, an
object with `error` where it fails. Directories may begin with `~/`, the home of who runs it:

    guard.py ticket DIRECTORY           allows one start; prints the ticket
    guard.py start DIRECTORY            the job comes as JSON on stdin (see `run_start`)
    guard.py observe DIRECTORY…         prints a list, one for each
    guard.py stop GRACE_S DIRECTORY…    prints a list, one for each
    guard.py find FOLDER…               what was started in directories of these folders

A process is known by its pid together with its start time in clock ticks since boot and the boot's
id: a recycled pid never matches. What belongs to it is every process of its session or process
group; its name and command line are never looked at, since vLLM's processes rename themselves.

Should its directory be removed, or what is written there lost, then a living guard is known by its own
words, and what it guards by being its child. `observe` and `stop` also take, as JSON on stdin, what the
launcher has recorded of the starts, {directory: object}: for a guard that is dead, or a folder that has
been moved.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # not at run time: Python 3.8 has no dict[…]
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Value = dict[str, Any]  # an object as JSON has it
    Living = Callable[[], list[int]]
    Table = dict[int, Value]  # what read_stat says, by pid
    Starts = Mapping[str, Value]  # what the launcher has recorded of starts, by directory

PROCESS_FILE = "process.json"
EXIT_FILE = "exit.json"
LOG_FILE = "log"
OLD_LOG_FILE = "log.1"
TICKET_FILE = "ticket"
LOCK_FILE = "lock"
GUARD_LOG_FILE = "guard.log"
SWITCHES_DIRECTORY = "switches"
BEGIN = "<<<vdisagg-guard "
END = " vdisagg-guard>>>"

POLL_S = 0.05
KILL_WAIT_S = 15.0  # a killed process may sit in the driver while it gives its GPU memory back
GUARD_WAIT_S = 10.0  # in which a living guard sees the end of its group, writes it down on a slow disk, and leaves
EXIT_WAIT_S = 0.2  # what a living guard needs to write down how its process ended
LOOK_S = 1.0  # how often a guard looks for stopped processes in its group
MEMBERS_S = 10.0  # how often it looks for new ones there: that reads every process of the machine
LONGEST_BACKOFF_S = 60.0
ENDS_KEPT = 5  # in process.json
IDENTITY = {"pid", "start_ticks", "guard_pid", "guard_start_ticks", "boot_id"}  # of a process there
NO_STARTS: Starts = {}
ROOM = 16384  # bytes: more than the longest command line and five ends in process.json take
FRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class GuardError(Exception):
    """Says what is wrong and what next, for the launcher to show."""


class OccupiedError(GuardError):
    """Something of an earlier launch lives in the directory."""


class CalledOffError(GuardError):
    """Somebody has asked for the process to be ended, or has started another in its place."""


# Looking at processes


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> Value | None:
    """State, parent, process group, session and start time of a process; None when there is none."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while being opened
        return None
    try:
        text = os.read(descriptor, 4096)  # raw, as every process of the machine is read in one look
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    fields = text[
        text.rindex(b")") + 2 :
    ].split()  # the name before it may hold blanks and brackets
    return {
        "state": fields[0].decode(),
        "parent": int(fields[1]),
        "group": int(fields[2]),
        "session": int(fields[3]),
        "start_ticks": int(fields[19]),
    }


def is_over(pid: int, stat: Value) -> bool:
    """Whether a process has ended but for its parent's wait: a zombie without living threads."""
    if stat["state"] not in "ZX":
        return False
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1
    except OSError:
        return True


def is_alive(pid: int, start_ticks: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat["start_ticks"] == start_ticks and not is_over(pid, stat)


def read_table() -> Table:
    """Every process of the machine at this moment."""
    with os.scandir("/proc") as entries:
        numbers = [int(entry.name) for entry in entries if entry.name.isdigit()]
    stats = ((number, read_stat(number)) for number in numbers)
    return {number: stat for number, stat in stats if stat is not None}


def members_of(pid: int, start_ticks: int, table: Table | None = None) -> list[int]:
    """Living processes of the session or group that process `pid` leads or led, leader first.

    `table`: one look at the machine that serves for many processes.
    """
    leader = read_stat(pid)
    if leader is not None and leader["start_ticks"] != start_ticks:
        return []  # the number can only be given out again once nobody of the old group is left
    found = []
    for other, stat in (read_table() if table is None else table).items():
        if pid not in (stat["session"], stat["group"]):
            continue
        if stat["start_ticks"] >= start_ticks and not is_over(other, stat):
            found.append(other)
    return sorted(found, key=lambda other: (other != pid, other))


# Files


def read_json(path: Path) -> Value | None:
    """The object in a file, or None when there is no such file or nothing whole in it."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def part_of(path: Path) -> Path:
    """Where a file is written before it takes its place. Only who holds the directory's lock does that."""
    return path.with_name(f"{path.name}.part")


def write_json(path: Path, value: Value, sync: bool = True) -> None:
    """Put `value` in its place whole, into the room that `reserve` has taken, if it has."""
    part = part_of(path)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(json.dumps(value).encode())
            file.truncate()
            file.flush()
            if sync:
                os.fsync(file.fileno())
        part.replace(path)
    except OSError as exc:  # a failing write names no file
        raise OSError(exc.errno, exc.strerror, str(path)) from exc


def reserve(path: Path) -> None:
    """Take room for what `write_json` will write next: a full disk must not keep a guard from it."""
    part = part_of(path)
    with contextlib.suppress(OSError), os.fdopen(os.open(part, FRESH, 0o600), "wb") as file:
        file.write(b" " * ROOM)


def remark(text: str) -> None:
    """Tell guard.log, which may stand on a full disk: that keeps the guard from nothing."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")


def make_directory(directory: Path) -> None:
    """For nobody else to look into, nor into the cluster's folder above it."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock: start and stop exclude each other. The child never inherits it."""
    with os.fdopen(os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_record(directory: Path) -> Value | None:
    """What process.json says; None where it is missing or damaged."""
    record = read_json(directory / PROCESS_FILE)
    return record if record is not None and record.keys() >= IDENTITY else None


def record_of(directory: Path) -> Value | None:
    """The same, if it was written since the machine's last boot."""
    record = read_record(directory)
    return record if record is not None and record["boot_id"] == boot_id() else None


# Where process.json is lost


class Look:
    """The machine at one moment, for many questions."""

    def __init__(self) -> None:
        self.table = read_table()
        self._guards: dict[str, list[int]] | None = None

    def guards(self) -> dict[str, list[int]]:
        """This user's guards, by the directory that they were started for."""
        if self._guards is None:
            self._guards = {}
            for pid, stat in self.table.items():
                # As `daemonise` leaves it; whoever waits for that has the same words.
                if stat["group"] == pid != stat["session"]:
                    directory = guarded_by(pid)
                    if directory is not None:
                        self._guards.setdefault(directory, []).append(pid)
        return self._guards

    def led_by_children_of(self, guard: int) -> list[int]:
        """The process that a guard has started, and orphans of it that it took in, in sessions of theirs."""
        led = [
            pid
            for pid, stat in self.table.items()
            if stat["parent"] == guard and stat["session"] == pid and not is_over(pid, stat)
        ]
        return sorted(led, key=lambda pid: self.table[pid]["start_ticks"])


def guarded_by(pid: int) -> str | None:
    """The directory that a guard of this user was started for; None where it is none.

    One with another root is in a container: the same path means another place there.
    """
    place = Path(f"/proc/{pid}")
    try:
        words = (place / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        if len(words) < 3 or words[-2] != b"start" or words[-3].split(b"/")[-1] != b"guard.py":
            return None
        if place.stat().st_uid != os.geteuid() or not (place / "root").samefile("/"):
            return None
        directory = os.fsdecode(words[-1])
        if directory.startswith("~/"):
            variables = (place / "environ").read_bytes().split(b"\0")
            homes = [os.fsdecode(one[5:]) for one in variables if one.startswith(b"HOME=")]
            directory = f"{homes[0] if homes else Path.home()}{directory[1:]}"
    except OSError:  # it has ended, or is another user's
        return None
    return str(Path(directory))


def lost_records(directory: Path, look: Look, started: Value | None = None) -> list[Value]:
    """What process.json would say where it is lost, of each session that lives; empty where none does.

    `started`: what the launcher has recorded of the start. A restart has changed the process's pid since,
    but not its guard's.
    """
    known = started if started is not None and started["boot_id"] == boot_id() else None
    guards = {pid: look.table[pid]["start_ticks"] for pid in look.guards().get(str(directory), [])}
    if known is not None and is_alive(known["guard_pid"], known["guard_start_ticks"]):
        guards[known["guard_pid"]] = known["guard_start_ticks"]
    found = [
        {
            "pid": leader,
            "start_ticks": look.table[leader]["start_ticks"],
            "guard_pid": guard,
            "guard_start_ticks": guard_start_ticks,
            "boot_id": boot_id(),
        }
        for guard, guard_start_ticks in guards.items()
        for leader in look.led_by_children_of(guard)
    ]
    if found or known is None:
        return found
    members = members_of(known["pid"], known["start_ticks"], look.table)
    return [known] if members or known["guard_pid"] in guards else []


def records_of(directory: Path, started: Value | None = None) -> list[Value]:
    """What process.json says of this boot's process, or would say if it is lost."""
    record = record_of(directory)
    return [record] if record is not None else lost_records(directory, Look(), started)


def members_of_all(records: list[Value]) -> list[int]:
    return [pid for one in records for pid in members_of(one["pid"], one["start_ticks"])]


# start


def issue_ticket(directory: Path) -> str:
    """Allow one start in this directory, until the next ticket or stop; returns the ticket.

    A launcher may die right after it has sent a guard on its way. The stop that follows withdraws
    the ticket, and so the late guard starts nothing.
    """
    make_directory(directory)
    ticket = os.urandom(16).hex()
    with locked(directory):
        write_json(directory / TICKET_FILE, {"ticket": ticket})
    return ticket


def run_start(directory: Path, job: Value, answer: Callable[[Value], None]) -> None:
    """Be the guard of one process: start it, `answer` the launcher, and stay until it has ended and is
    not to be started again.

    `job`: name, kind, argv, env (added to our own environment), cwd, grace_s, the ticket, the folder
    that holds the switches (None for a process that takes up none), the mark (who launches, for those
    who find the process later), and restart (plan.model.Restart as an object; never where there is
    none). Values of `env` are written nowhere. A word of `argv`, and an entry of PYTHONPATH, may begin
    with `~/`.
    """
    signals = {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    become_subreaper()
    with locked(directory):
        ticket = read_json(directory / TICKET_FILE) or {}
        if ticket.get("ticket") != job["ticket"]:
            raise CalledOffError(f"{job['name']}: the launch was called off by a later command")
        refuse_second(directory, job["name"])
        if job.get("switches") is not None:
            copy_switches(Path(job["switches"]).expanduser(), directory / SWITCHES_DIRECTORY)
        for leftover in (PROCESS_FILE, EXIT_FILE):  # a start that fails must not look like the last
            with contextlib.suppress(FileNotFoundError):
                (directory / leftover).unlink()
        child, record = start_process(directory, job, unblocked, [])
    answer(record)
    stay(directory, job, unblocked, child, record)


def start_process(
    directory: Path, job: Value, unblocked: set[Any], ends: list[Value]
) -> tuple[subprocess.Popen[bytes], Value]:
    """Start the process, under the lock; `ends` is how its predecessors under this guard ended."""
    child = start_child(directory, job, unblocked)
    record = describe(child.pid, job, ends)
    try:
        write_json(directory / PROCESS_FILE, record)
    except OSError:
        child.kill()  # what nobody can find again must not live; it has had no time to fork
        child.wait()
        raise
    for name in (EXIT_FILE, PROCESS_FILE):  # for its end, and for the start after that
        reserve(directory / name)
    return child, record


def refuse_second(directory: Path, name: str) -> None:
    """Raises OccupiedError."""
    living = members_of_all(records_of(directory))
    if living:
        raise OccupiedError(
            f"{name}: already runs in {directory} as pid {living[0]}; next: take that cluster down"
        )


def copy_switches(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    for module in source.glob("*.py"):
        (target / module.name).write_bytes(module.read_bytes())


def at_home(word: str) -> str:
    """As a shell would say it: `~/` is the home directory."""
    return os.path.expanduser(word) if word.startswith("~/") else word  # noqa: PTH111  # words, not paths


def start_child(directory: Path, job: Value, unblocked: set[Any]) -> subprocess.Popen[bytes]:
    log = directory / LOG_FILE
    if log.exists() and log.stat().st_size:
        log.replace(directory / OLD_LOG_FILE)
    usual_umask = os.umask(0o077)

    def prepare() -> None:
        # Safe here although `preexec_fn` is not in general: the guard has one thread.
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.umask(usual_umask)

    environment = dict(os.environ)
    environment.update(job["env"])
    if "PYTHONPATH" in job["env"]:
        entries = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(map(at_home, entries))
    with log.open("ab") as out:
        try:
            return subprocess.Popen(
                [at_home(word) for word in job["argv"]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=at_home(job["cwd"]),
                env=environment,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except OSError as exc:
            raise GuardError(explain(job, exc)) from exc


def explain(job: Value, exc: OSError) -> str:
    name, executable, cwd = job["name"], at_home(job["argv"][0]), at_home(job["cwd"])
    if exc.filename == cwd and cwd != executable:
        return f"{name}: cannot enter {cwd}: {exc.strerror}"
    if exc.errno == errno.ENOENT:
        return (
            f"{name}: {executable}: no such file (or its interpreter is missing); "
            "next: install it, or name the right executable in the topology"
        )
    if exc.errno == errno.EACCES:
        return f"{name}: {executable}: not executable; next: chmod +x, or name another"
    return f"{name}: {executable}: {exc.strerror}"


def describe(pid: int, job: Value, ends: list[Value]) -> Value:
    child, guard = read_stat(pid), read_stat(os.getpid())
    assert child is not None, "nobody has waited for it yet, so it is there, if as a zombie"
    assert guard is not None
    return {
        "name": job["name"],
        "kind": job.get("kind"),
        "mark": job.get("mark"),
        "pid": pid,
        "start_ticks": child["start_ticks"],
        "guard_pid": os.getpid(),
        "guard_start_ticks": guard["start_ticks"],
        "boot_id": boot_id(),
        "argv": job["argv"],
        "at": time.time(),
        "generation": ends[-1]["generation"] + 1 if ends else 1,
        "restarts": ends[-ENDS_KEPT:],
    }


def become_subreaper() -> None:
    """Take in orphans of our child, so that they leave no zombies where pid 1 does not wait."""
    import ctypes  # here, as the guard's other uses need not wait for it

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# Staying with it


def stay(
    directory: Path,
    job: Value,
    unblocked: set[Any],
    child: subprocess.Popen[bytes],
    record: Value,
) -> None:
    """Watch the process, write down each end at once, and start it again for as long as it may be.

    It has failed when it ends unasked, whatever its exit code: none of a cluster's processes ends by
    itself, and `vllm serve --headless` leaves with 0 when its engine core has died (vLLM 0.32,
    entrypoints/cli/serve.py, run_headless). It has been asked for by `stop`, which withdraws the
    ticket first, or by TERM to the guard.
    """
    restart = {"policy": "never", **(job.get("restart") or {})}
    in_a_row = 0
    ends: list[Value] = []
    while True:
        begun = time.monotonic()
        asked, fault = watch(child, record, job["grace_s"], stopped_limit_s(restart))
        if time.monotonic() - begun >= restart.get("reset_s", 0.0):
            in_a_row = 0
        ends.append(describe_end(child.returncode, record, fault))
        delay_s = None if asked else restart_delay_s(restart, in_a_row)
        gave_up = delay_s is None and not asked and restart["policy"] != "never"
        delay_s = note_end(directory, record, ends[-1], delay_s, gave_up)
        end_group(record, job["grace_s"], reap_orphans)
        reap_orphans()
        while delay_s is not None:
            if is_called_off_within(delay_s):
                note_end(directory, record, ends[-1], None, gave_up=False)
                return
            in_a_row += 1
            try:
                with locked(directory):
                    refuse_restart(directory, record)
                    refuse_second(directory, job["name"])
                    child, record = start_process(directory, job, unblocked, ends)
                break
            except CalledOffError:
                return
            except (GuardError, OSError) as exc:
                ends[-1]["reason"] = f"cannot be started again: {reason(exc)}"
                delay_s = restart_delay_s(restart, in_a_row)
                delay_s = note_end(directory, record, ends[-1], delay_s, gave_up=delay_s is None)
        else:
            return


def restart_delay_s(restart: Value, in_a_row: int) -> float | None:
    """How long to wait after an end before the next restart, `in_a_row` of them having come to nothing;
    None where there is to be none."""
    if restart["policy"] == "never" or in_a_row >= restart["limit"]:
        return None
    if in_a_row == 0:
        return 0.0
    backoff_s: float = restart["backoff_s"]
    doubled_s = backoff_s * 2.0 ** min(in_a_row - 1, 20)
    return min(doubled_s, max(LONGEST_BACKOFF_S, backoff_s))


def stopped_limit_s(restart: Value) -> float | None:
    """How long a member may be stopped by a signal; None where that is nobody's business."""
    return None if restart["policy"] == "never" else restart["stopped_s"]


def watch(
    child: subprocess.Popen[bytes], record: Value, grace_s: float, stopped_s: float | None
) -> tuple[bool, str]:
    """Wait until the child has ended: whether TERM to the guard asked for it, and what the guard had
    against it, if it killed it.

    TERM to the guard means TERM to the group, and KILL after the grace time.
    """
    signals = {signal.SIGTERM, signal.SIGCHLD}
    pid, start_ticks = record["pid"], record["start_ticks"]
    stops = Stops(pid, start_ticks)
    next_look = time.monotonic() + LOOK_S
    asked, fault = False, ""
    while child.poll() is None:
        if stopped_s is None:
            number: int | None = signal.sigwait(signals)
        else:
            seen = signal.sigtimedwait(signals, max(0.0, next_look - time.monotonic()))
            number = None if seen is None else seen.si_signo
        if number == signal.SIGTERM:
            asked = True
            end_group(record, grace_s, child.poll)
        now = time.monotonic()
        if stopped_s is not None and now >= next_look:
            next_look = now + LOOK_S
            if stops.longest_s(now) >= stopped_s:
                fault = f"was stopped for {stopped_s:g} s, and killed"
                send(members_of(pid, start_ticks), signal.SIGKILL)
    return asked, fault


class Stops:
    """Since when members of a group have been stopped by a signal (state T; a traced one is in t)."""

    def __init__(self, pid: int, start_ticks: int) -> None:
        self._leader = (pid, start_ticks)
        self._members = [pid]
        self._members_due = 0.0
        self._since: dict[int, float] = {}

    def longest_s(self, now: float) -> float:
        """For how long the first of those that are stopped now has been."""
        if now >= self._members_due:
            self._members_due = now + MEMBERS_S
            self._members = members_of(*self._leader)
        stopped = [pid for pid in self._members if self._is_stopped(pid)]
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        return now - min(self._since.values(), default=now)

    def _is_stopped(self, pid: int) -> bool:
        stat = read_stat(pid)
        ours = stat is not None and self._leader[0] in (stat["session"], stat["group"])
        return ours and stat is not None and stat["state"] == "T"


def is_called_off_within(delay_s: float) -> bool:
    """Wait for so long; whether TERM has come meanwhile, or before."""
    return signal.sigtimedwait({signal.SIGTERM}, delay_s) is not None


def end_group(record: Value, grace_s: float, reap: Callable[[], object]) -> None:
    end(lambda: members_of(record["pid"], record["start_ticks"]), grace_s, reap)


def describe_end(returncode: int, record: Value, fault: str) -> Value:
    return {
        "pid": record["pid"],
        "start_ticks": record["start_ticks"],
        "generation": record["generation"],
        "code": returncode if returncode >= 0 else None,
        "signal": -returncode if returncode < 0 else None,
        "at": time.time(),
        "reason": fault,
    }


def note_end(
    directory: Path, record: Value, ended: Value, delay_s: float | None, gave_up: bool
) -> float | None:
    """Write down how the process ended, and when it will be started again, `delay_s` from now, if at
    all. Returns `delay_s`, or None where a restart has been called off."""
    try:
        with locked(directory):
            try:
                refuse_restart(directory, record)
            except CalledOffError:
                delay_s, gave_up = None, False
            if is_ours(directory, record):
                due = None if delay_s is None else time.time() + delay_s
                value = {**ended, "restart_at": due, "gave_up": gave_up}
                # A controller's restart must not wait for a slow disk.
                write_json(directory / EXIT_FILE, value, sync=delay_s is None)
                reserve(directory / EXIT_FILE)  # this end may have more to be told
    except OSError as exc:  # a full disk, say: what is left of the group must be ended all the same
        how = f"exit code {ended['code']}, signal {ended['signal']}"
        remark(f"{record['name']}: {how} could not be written: {reason(exc)}")
    return delay_s


def is_ours(directory: Path, record: Value) -> bool:
    """Whether nobody has started another process in this directory."""
    written = read_json(directory / PROCESS_FILE) or {}
    return all(written.get(name) == record[name] for name in ("pid", "start_ticks", "boot_id"))


def refuse_restart(directory: Path, record: Value) -> None:
    """Raises CalledOffError where the end has been asked for, or the directory is another guard's."""
    if not (directory / TICKET_FILE).exists() or not is_ours(directory, record):
        raise CalledOffError(f"{record['name']}: is not to run any more")


def reap_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# observe and stop


def observe_all(directories: list[Path], started: Starts = NO_STARTS) -> list[Value]:
    """`observe` for each, with one look at the machine. `started`: by directory."""
    look = Look()
    return [observe(place, look, started.get(str(place))) for place in directories]


def observe(directory: Path, look: Look | None = None, started: Value | None = None) -> Value:
    """What there is to see of the process that was last started in `directory`.

    `state`: never (nothing was started), running, restarting (it has ended, and its guard will start
    it again at `restart_at`), exited (code or signal known), gone (not alive, and no guard lived to see
    how it ended, or `guard_alive`, and it has not said yet). `members`: living processes of its group.
    `stopped`: whether one of them is stopped by a signal. Code, signal, `ended_at` and `end_reason` are the
    last end's: of a running process, its predecessor's. `lost`: whether it is known in spite of its
    process.json, which is missing or damaged.
    """
    written = read_record(directory)
    lost = lost_records(directory, look or Look(), started) if written is None else []
    written = written or next(iter(lost), None)
    seen: Value = {
        "state": "never",
        "lost": bool(lost),
        **told_end(),
        "pid": None,
        "guard_pid": None,
        "guard_alive": False,
        "members": [],
        "stopped": False,
        "generation": 1,
        "started_at": None,
        "process": written,
    }
    if written is None:
        return seen
    pid, start_ticks = written["pid"], written["start_ticks"]
    seen.update({"pid": pid, "guard_pid": written["guard_pid"], "started_at": written.get("at")})
    seen["generation"] = written.get("generation", 1)
    if written["boot_id"] == boot_id():
        if look is None or (pid not in look.table and is_alive(pid, start_ticks)):
            look = Look()  # it was started after the last one
        seen["members"] = members_of(pid, start_ticks, look.table)
        seen["stopped"] = any(look.table[member]["state"] == "T" for member in seen["members"])
        seen["guard_alive"] = is_alive(written["guard_pid"], written["guard_start_ticks"])
    if pid in seen["members"]:
        seen["state"] = "running"
        seen.update(told_end(*written.get("restarts", [])[-1:]))
        return seen
    ended = end_of(directory, written)
    deadline = time.monotonic() + EXIT_WAIT_S
    while ended is None and seen["guard_alive"] and time.monotonic() < deadline:
        time.sleep(POLL_S)
        ended = end_of(directory, written)
    if ended is None:
        seen["state"] = "gone"
        return seen
    seen.update(told_end(ended))
    seen["state"] = "exited"
    if seen["guard_alive"] and ended.get("restart_at") is not None:
        seen["state"] = "restarting"
    return seen


def told_end(ended: Value | None = None) -> Value:
    """How a process ended, in the words of `observe`; of none, the same without anything in it."""
    ended = ended or {}
    return {
        "code": ended.get("code"),
        "signal": ended.get("signal"),
        "ended_at": ended.get("at"),
        "end_reason": ended.get("reason", ""),
        "restart_at": ended.get("restart_at"),
        "gave_up": ended.get("gave_up", False),
    }


def end_of(directory: Path, record: Value) -> Value | None:
    """What exit.json says of this very process; a predecessor's stays there until the next end."""
    ended = read_json(directory / EXIT_FILE)
    if ended is None or any(ended[name] != record[name] for name in ("pid", "start_ticks")):
        return None
    return ended


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(
    living: Living, grace_s: float, reap: Callable[[], object] = lambda: None
) -> tuple[list[int], list[int]]:
    """TERM what `living()` names, wait, KILL; returns (ended pids, pids that would not die)."""
    first = living()
    if not first:
        return [], []
    ended = set(first)
    send(
        first, signal.SIGTERM
    )  # the leader first: it shall not take its children's end for a fault
    send(first, signal.SIGCONT)  # a stopped process takes its TERM only when it goes on
    left = wait_until_none(living, grace_s, ended, reap)
    if left:
        deadline = time.monotonic() + KILL_WAIT_S
        while left and time.monotonic() < deadline:
            send(left, signal.SIGKILL)  # again and again: members may have forked meanwhile
            left = wait_until_none(living, 5 * POLL_S, ended, reap)
    return sorted(ended - set(left)), sorted(left)


def wait_until_none(
    living: Living, limit_s: float, seen: set[int], reap: Callable[[], object] = lambda: None
) -> list[int]:
    deadline = time.monotonic() + limit_s
    while True:
        reap()
        # Twice: a look takes time, and who forks and ends meanwhile hides its child from it.
        left = living() or living()
        seen.update(left)
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(POLL_S)


def stop_all(directories: list[Path], grace_s: float, started: Starts = NO_STARTS) -> list[Value]:
    """`stop` for each, all at once, in their order. `started`: by directory."""
    from concurrent.futures import ThreadPoolExecutor  # here: it takes as long as all else to load

    with ThreadPoolExecutor(max_workers=max(1, len(directories))) as pool:
        done = pool.map(lambda one: stop(one, grace_s, started.get(str(one))), directories)
        return list(done)


def stop(directory: Path, grace_s: float, started: Value | None = None) -> Value:
    """End everything that was started in `directory`; do it any number of times.

    Returns {"ended": [pids], "left": [pids that even KILL did not end], "guard_killed": bool}.
    """
    if directory.is_dir():
        # Waits for a start that is under way, and calls off later ones.
        with locked(directory), contextlib.suppress(FileNotFoundError):
            (directory / TICKET_FILE).unlink()
    records = records_of(directory, started)
    guards = {record["guard_pid"]: record["guard_start_ticks"] for record in records}

    def living_guard() -> list[int]:
        return [pid for pid, start_ticks in guards.items() if is_alive(pid, start_ticks)]

    ended, left = end(lambda: members_of_all(records), grace_s)

    send(living_guard(), signal.SIGTERM)  # it may be about to start the process again
    send(living_guard(), signal.SIGCONT)  # as in `end`
    killed = False
    if wait_until_none(living_guard, GUARD_WAIT_S, set()):
        send(living_guard(), signal.SIGKILL)
        killed = True
        left = left + wait_until_none(living_guard, KILL_WAIT_S, set())
    return {"ended": ended, "left": left, "guard_killed": killed}


def find(folders: list[Path]) -> list[Value]:
    """What has been started, or may still be, in any directory of these folders, whoever asked for it.

    Each is {"directory", "process": what process.json says, or would say, or None, "members",
    "guard_alive"}.
    """
    look = Look()
    directories = {path for folder in folders if folder.is_dir() for path in folder.iterdir()}
    removed = {Path(directory) for directory in look.guards()}
    directories |= {directory for directory in removed if directory.parent in folders}
    found = []
    for directory in sorted(directories):
        seen = observe(directory, look)
        if seen["process"] is None and not (directory / TICKET_FILE).exists():
            continue
        kept = {name: seen[name] for name in ("process", "members", "guard_alive")}
        found.append({"directory": str(directory), **kept})
    return found


# The command line


def say(value: Value | list[Value]) -> None:
    sys.stdout.write(BEGIN + json.dumps(value) + END + "\n")
    sys.stdout.flush()


def reason(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.filename is not None:
        return f"{exc.filename}: {exc.strerror}"
    return str(exc)


def refusal(exc: Exception) -> Value:
    return {"error": reason(exc), "occupied": isinstance(exc, OccupiedError)}


def daemonise(directory: Path) -> tuple[bool, int]:
    """Fork off a process of its own session; returns the answer pipe there, and the reading end here.

    Returns (True, descriptor) in the daemon and (False, descriptor) in the caller.
    """
    reading, writing = os.pipe()
    first = os.fork()
    if first:
        os.close(writing)
        os.waitpid(first, 0)
        return False, reading
    os.close(reading)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)
    os.chdir("/")
    close_inherited(writing)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    with contextlib.suppress(OSError):  # no room for one more file: the guard has more to do
        log = os.open(directory / GUARD_LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        os.close(log)
    return True, writing


def close_inherited(kept: int) -> None:
    """Close what came from whoever called us, but for stdin, stdout, stderr and the one to keep.

    An SSH channel stays open as long as anybody holds an end of it.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names, not paths
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(int(name))


def start_command(directory: Path) -> None:
    job = json.load(sys.stdin)
    make_directory(directory)
    inside, pipe = daemonise(directory)
    if not inside:
        with os.fdopen(pipe) as answers:
            text = answers.read()
        say(
            json.loads(text)
            if text
            else {"error": f"the guard died; see {directory / GUARD_LOG_FILE}"}
        )
        return

    answers = os.fdopen(pipe, "w")

    def answer(value: Value) -> None:
        with contextlib.suppress(OSError), answers:  # the launcher may be gone
            json.dump(value, answers)

    try:
        run_start(directory, job, lambda record: answer({"started": record}))
    except (GuardError, OSError) as exc:
        if answers.closed:
            remark(reason(exc))
        else:
            answer(refusal(exc))
        sys.exit(1)


def read_starts() -> Starts:
    """What the launcher has recorded of starts, by directory, from stdin; nothing where it is empty."""
    text = "" if sys.stdin.isatty() else sys.stdin.read()
    return {str(Path(at_home(place))): one for place, one in json.loads(text or "{}").items()}


def main(words: list[str]) -> None:
    try:
        do(words)
    except (GuardError, OSError) as exc:
        say(refusal(exc))
        sys.exit(1)


def do(words: list[str]) -> None:
    command, places = (words[0] if words else ""), [Path(word).expanduser() for word in words[1:]]
    if command == "start" and len(places) == 1:
        start_command(places[0])
    elif command == "ticket" and len(places) == 1:
        say({"ticket": issue_ticket(places[0])})
    elif command == "observe":
        say(observe_all(places, read_starts()))
    elif command == "stop" and places:
        say(stop_all(places[1:], float(words[1]), read_starts()))
    elif command == "find":
        say(find(places))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
