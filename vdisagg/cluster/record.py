"""The cluster's record, `cluster.json`, and its lock: what up and down know of a running cluster.

Only up and down write the record, under the lock; everybody may read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from vdisagg.cluster import leftovers
from vdisagg.errors import ClusterBusy, Failure, RecordUnreadable
from vdisagg.plan.model import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

FORMAT = 1
RECORD_FILE = "cluster.json"
LOCK_FILE = "lock"

# The guard's file names in a process's directory. The guard is copied to nodes and imports nothing
# of ours, so it repeats them; a test holds both together.
PROCESS_FILE = "process.json"
EXIT_FILE = "exit.json"
LOG_FILE = "log"
OLD_LOG_FILE = "log.1"
SWITCHES_DIRECTORY = "switches"

WITHOUT = (
    "next: `vdisagg down FILE --find`, with its topology file, ends what runs of it all the same, and "
    "forgets the record"
)
PATIENCE_S = 0.3  # `status` looks at the lock by taking it for an instant; that is not "busy"


class Started(msgspec.Struct, frozen=True):
    """A process that a guard has started. Times since boot are in clock ticks."""

    pid: int
    start_ticks: int
    boot_id: str
    guard_pid: int
    guard_start_ticks: int
    directory: str
    at: float
    """Unix time."""


class Record(msgspec.Struct, frozen=True):
    """What runs, or is being started, under one cluster name."""

    plan: Plan
    created: float
    by_pid: int
    phase: Literal["starting", "up"]
    processes: dict[str, Started]
    format: int = FORMAT


class _Format(msgspec.Struct):
    format: int


def state_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the clusters' state directories are: `$XDG_STATE_HOME/vdisagg`."""
    configured = environment.get("XDG_STATE_HOME", "")
    # The XDG base directory specification has relative paths ignored.
    home = Path(configured) if configured.startswith("/") else Path.home() / ".local" / "state"
    return home / "vdisagg"


def state_directory(name: str) -> Path:
    """The state directory of a cluster, made if need be, mode 0700.

    Raises Failure when it cannot be made.
    """
    directory = state_root() / name
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if stat.S_IMODE(directory.stat().st_mode) != 0o700:
            directory.chmod(0o700)
    except OSError as exc:
        raise Failure(
            f"{directory}: cannot be made the cluster's state directory: {exc.strerror}; "
            "next: set XDG_STATE_HOME to a directory of yours"
        ) from exc
    return directory


def recorded() -> list[str]:
    """Names of the clusters that have a record, sorted."""
    return sorted(path.parent.name for path in state_root().glob(f"*/{RECORD_FILE}"))


def read(directory: Path) -> Record | None:
    """The record in a state directory, or None when there is none.

    Raises RecordUnreadable, and Failure when it was written by a newer version.
    """
    path = directory / RECORD_FILE
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise RecordUnreadable(f"{path}: cannot be read: {exc.strerror}; {WITHOUT}") from exc
    try:
        version = msgspec.json.decode(text, type=_Format).format
        if version > FORMAT:
            raise Failure(
                f"{path}: format {version} is newer than this vdisagg knows ({FORMAT}); "
                "next: use the vdisagg that started the cluster"
            )
        return msgspec.json.decode(text, type=Record)
    except msgspec.DecodeError as exc:
        raise RecordUnreadable(f"{path}: not a cluster record: {exc}; {WITHOUT}") from exc


def write(directory: Path, record: Record) -> None:
    """Put the record in its place whole: readers see the old one or the new one. Mode 0600.

    Raises Failure when the disk does not take it.
    """
    part = directory / f"{RECORD_FILE}.part"
    try:
        _write_whole(part, record)
    except OSError as exc:
        raise Failure(f"{directory / RECORD_FILE}: cannot be written: {exc.strerror}") from exc


def encode(record: Record) -> bytes:
    """A record as it is written."""
    return msgspec.json.format(msgspec.json.encode(record))


def _write_whole(part: Path, record: Record) -> None:
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(encode(record))
        file.flush()
        os.fsync(file.fileno())
    part.replace(part.with_name(RECORD_FILE))


def remove(directory: Path) -> None:
    """Forget the cluster, and what its controller has kept of the run; logs and results stay.

    Raises Failure when something of it cannot be removed.
    """
    try:
        leftovers.remove(directory)
        (directory / RECORD_FILE).unlink(missing_ok=True)
    except OSError as exc:
        what = f"{exc.filename}: cannot be removed: {exc.strerror}"
        raise Failure(f"{what}; next: mend that") from exc


class Holder(msgspec.Struct, frozen=True):
    """Who holds a cluster's lock, since when (Unix time)."""

    pid: int
    command: str
    since: float

    def __str__(self) -> str:
        return f"`{self.command}` (pid {self.pid})" if self.pid else self.command


UNKNOWN_HOLDER = Holder(pid=0, command="another command", since=0.0)


def _holder_in(descriptor: int) -> Holder:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    except msgspec.DecodeError:
        return UNKNOWN_HOLDER  # it has only just taken the lock


def _try(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(directory: Path) -> Holder | None:
    """Who holds the cluster's lock at this moment, if anybody."""
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return None if _try(descriptor, fcntl.LOCK_SH) else _holder_in(descriptor)
    finally:
        os.close(descriptor)


class Lock:
    """The cluster's lock, held for the whole of an up or a down; the kernel frees it on kill -9.

    The file stays: unlinking it would let two commands lock two files of one name.
    """

    def __init__(
        self, directory: Path, command: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._directory = directory
        self._command = command
        self._clock = clock
        self._descriptor = -1

    def __enter__(self) -> Lock:
        """Raises ClusterBusy, naming who holds the lock and for how long, and Failure where there can
        be no lock."""
        # Close-on-exec: a guard that inherited the lock would keep it for the cluster's life.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        path = self._directory / LOCK_FILE
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as exc:
            raise Failure(f"{path}: cannot be opened: {exc.strerror}; next: mend that") from exc
        try:
            self._take(descriptor)
            value = {"pid": os.getpid(), "command": self._command, "since": self._clock()}
            with contextlib.suppress(OSError):  # on a full disk nobody hears who holds it
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(value).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return self

    def _take(self, descriptor: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not _try(descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                other = _holder_in(descriptor)
                age = f" for {max(0.0, self._clock() - other.since):.0f} s" if other.since else ""
                raise ClusterBusy(
                    f"cluster {self._directory.name} is busy: {other} has been at it{age}; "
                    "next: wait for it, or end it and try again"
                )
            time.sleep(0.02)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
