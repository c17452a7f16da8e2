"""The events of a run: written down as they happen, and read back by the next controller."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from vdisagg.cluster import happened
from vdisagg.cluster.admin import Event, Events
from vdisagg.cluster.happened import KEPT, RunBegins
from vdisagg.cluster.leftovers import EVENTS_FILE, OLD_EVENTS_FILE

MAX_BYTES: Final = 4 << 20
"""Of a file; the one before it is kept. Some 40,000 events."""


class History:
    """Numbered events. A disk that takes none is no reason to stop: `fault` says so, and they are kept in
    memory."""

    def __init__(self, directory: Path, *, run: float, max_bytes: int) -> None:
        self._path = directory / EVENTS_FILE
        self._old_path = directory / OLD_EVENTS_FILE
        self._run = run
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._size = 0
        self._last = 0
        self._events: deque[Event] = deque(maxlen=KEPT)
        self.fault = ""
        """Why nothing is written; empty while all is well."""

    @classmethod
    def open(cls, directory: Path, *, run: float, max_bytes: int = MAX_BYTES) -> History:
        """Go on with the events in `directory`, if they are of the run whose record was made at `run`
        (Unix time)."""
        history = cls(directory, run=run, max_bytes=max_bytes)
        try:
            before = happened.read(directory, run=run)
            history._last = before.last
            history._events.extend(before.events)
            history._open(marked=before.current)
        except OSError as exc:
            history._give_up(exc)
        return history

    def add(self, at: float, subject: str, what: str) -> Event:
        """Something has happened, at Unix time `at`."""
        self._last += 1
        event = Event(at, subject, what, self._last)
        self._events.append(event)
        if not self.fault:
            try:
                self._write(event)
                if self._size > self._max_bytes:
                    self._begin_anew()
            except OSError as exc:
                self._give_up(exc)
        return event

    def after(self, number: int = 0) -> Events:
        """The last events with numbers above `number`."""
        return Events([event for event in self._events if event.number > number], self._last)

    def close(self) -> None:
        """The files stay."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, *, marked: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # after half a line
        if not marked or not self._size:
            self._write(RunBegins(self._run))

    def _write(self, line: Event | RunBegins) -> None:
        data = msgspec.json.encode(line) + b"\n"
        self._size += len(data)
        if os.write(self._descriptor, data) < len(data):
            raise OSError(0, "the disk takes no more")

    def _begin_anew(self) -> None:
        self.close()
        self._path.rename(self._old_path)
        self._open(marked=False)

    def _give_up(self, exc: OSError) -> None:
        self.fault = f"{self._path}: events are not written: {exc.strerror}"
        self.close()
