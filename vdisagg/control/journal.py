"""What the controller has received from the front end and has sent to it, and which handles may be unread, in a
file that outlives it.

Each message is written before it is acted on, or sent. The file lies in the page cache as soon as write(2)
has returned, so the death of the process loses nothing; that of the machine ends the front end, too, and
nobody asks for the journal any more. It holds the token ids of prompts and answers: mode 0600, and `down`
removes it.

    journal         begins with what was live at its start (unless it is the first one)
    journal.1       the one before it, so that late messages can be sent again
    journal.part    one that is only just being written
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from vdisagg.cluster.leftovers import JOURNAL_FILE as FILE
from vdisagg.cluster.leftovers import OLD_JOURNAL_FILE as OLD_FILE
from vdisagg.cluster.leftovers import PART_JOURNAL_FILE as PART_FILE
from vdisagg.control import entries, ledger
from vdisagg.control.entries import INPUT, LEGS, LIVE, OUTPUT
from vdisagg.control.recall import Recall, Recalled
from vdisagg.control.wire import encode

MAX_BYTES: Final = 8 << 20
"""A new controller reads so much before it does anything: up to half a second on a slow core."""

READ_BYTES: Final = 64 << 10
"""Read back in one call of `tidy`, at most, and not before there is as much: up to 4 ms on a slow core."""

READ_SHARE: Final = 16
"""Of a backlog that has grown beyond that, this part is read: it doesn't grow without end."""

MAX_OVER: Final = 256
"""Ends of legs that are told together."""

MAX_PARTS: Final = 1000  # the kernel takes 1024 at once (IOV_MAX)


class Journal:
    """The journal of one front end, open for writing. Not for two processes at a time.

    A disk that does not take an entry is no reason to stop serving: the journal is given up then, its
    files go, and `fault` says why. Numbers are counted on, so that the front end notices nothing.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._descriptor = -1
        self._received: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._recall = Recall()
        self._recalled_to = 0
        self._size = 0
        self._limit = max_bytes
        self._over: list[str] = []
        """Ends of legs that have not been written down yet."""
        self.fault = ""
        """Why nothing is written any more; empty while all is well."""

    @classmethod
    def open(cls, directory: Path, *, max_bytes: int = MAX_BYTES) -> Journal:
        """Continue what is in `directory`, or begin.

        `max_bytes`: how long a file may grow before `tidy` begins a new one.
        """
        journal = cls(directory, max_bytes)
        try:
            journal._open()
        except OSError as exc:
            journal._give_up(exc)
        return journal

    def close(self) -> None:
        """The files stay."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """The run is over: close it, and leave nothing of it."""
        self.close()
        try:
            self._remove()
        except OSError as exc:
            self.fault = f"{self._directory / FILE}: cannot be removed: {exc.strerror}"

    def reset(self, *, legs: bool = False) -> None:
        """Forget everything: the front end is another one, its ids and numbers begin anew.

        `legs`: but for what engines may keep for legs; they are the same.
        """
        if self._over:
            self._note()
        left = self.recalled() if legs and not self.fault else Recalled()
        self.close()
        self._received, self._sent = {}, {}
        self._recall = Recall()
        self._recalled_to = 0
        self.fault = ""
        try:
            self._remove()
            self._open()
        except OSError as exc:
            self._give_up(exc)
        if left.legs or left.samples:
            self._append(LIVE, 0, 0, [encode(Recalled(legs=left.legs, samples=left.samples))])

    # -- writing ------------------------------------------------------------------------------

    def input(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes] = ()) -> None:
        """A message of API server `api` has come, of whatever kind."""
        number = self._received.get(api, 0) + 1
        self._received[api] = number
        self._append(INPUT, api, number, [kind, payload, *frames])

    def output(self, api: int, payload: bytes, frames: Sequence[bytes] = ()) -> int:
        """A message to API server `api` is about to be sent; its number, from 1 on."""
        number = self._sent.get(api, 0) + 1
        self._sent[api] = number
        self._append(OUTPUT, api, number, [payload, *frames])
        return number

    # What becomes of handles: a Ledger.

    def begun(self, leg: str, prefill: str) -> None:
        """See Ledger."""
        self._note([ledger.BEGUN, leg, prefill])

    def handed(self, leg: str, under: str, at: str) -> None:
        """See Ledger."""
        self._note([ledger.HANDED, leg, under, at])

    def over(self, leg: str) -> None:
        """See Ledger. There is no hurry: it is written with what comes next."""
        self._over.append(leg)
        if len(self._over) >= MAX_OVER:
            self._note()

    def sample(self, prefill: str, handle: bytes) -> None:
        """See Ledger."""
        self._note([ledger.SAMPLE, prefill, handle])

    def gone(self, prefill: str) -> None:
        """See Ledger."""
        self._note([ledger.GONE, prefill])

    def _note(self, *notes: ledger.Note) -> None:
        if self._over:
            notes = ([ledger.OVER, *self._over], *notes)
            self._over.clear()
        self._append(LEGS, 0, 0, [encode(notes)])

    def tidy(self) -> None:
        """To be called often: reads back what was written, when it has become a little, which is how the
        live state is known when the file is long and a new one has to begin."""
        if self._over:
            self._note()
        backlog = self._size - self._recalled_to
        if self.fault or (backlog < READ_BYTES and self._size <= self._limit):
            return
        try:
            up_to_date = self._read_on(max(READ_BYTES, backlog // READ_SHARE))
            if up_to_date and self._size > self._limit:
                self._begin_anew()
        except OSError as exc:
            self._give_up(exc)

    # -- reading ------------------------------------------------------------------------------

    def received(self, api: int) -> int:
        """How many messages have come from an API server."""
        return self._received.get(api, 0)

    def sent(self, api: int) -> int:
        """The number of the last message to an API server."""
        return self._sent.get(api, 0)

    def recalled(self) -> Recalled:
        """What is left to be done. For a new controller; reads what has not been read yet."""
        if not self.fault:
            self._read_on()
        return self._recall.recalled()

    def outputs_after(self, api: int, seq: int) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Messages to an API server with numbers above `seq`: number, payload, further frames.

        Of old ones only those that the files still hold: at least the last `max_bytes` of everything.
        """
        for name in (OLD_FILE, FILE):
            path = self._directory / name
            if not path.exists():
                continue
            for _, entry in entries.read(path):
                if entry.what == OUTPUT and entry.api == api and entry.number > seq:
                    payload, *frames = entry.parts
                    yield entry.number, payload, frames

    # -- the files ----------------------------------------------------------------------------

    def _open(self) -> None:
        path, part = self._directory / FILE, self._directory / PART_FILE
        if path.exists():
            part.unlink(missing_ok=True)  # it was never finished
        elif part.exists():
            part.rename(path)  # killed between the two renames of `_begin_anew`
        self._descriptor = _opened(path)
        self._read_on()
        self._received, self._sent = dict(self._recall.received), dict(self._recall.sent)
        os.ftruncate(self._descriptor, self._recalled_to)  # what was left half written
        self._size = self._recalled_to
        first = next(entries.read(path), None)
        begin = first[0] if first is not None and first[1].what == LIVE else 0
        self._limit = max(self._max_bytes, 2 * begin)

    def _append(self, what: bytes, api: int, number: int, parts: list[bytes]) -> None:
        if self.fault:
            return
        if len(parts) > MAX_PARTS:
            buffers = [entries.head(what, api, number, parts), b"".join(parts)]
        else:
            buffers = [entries.head(what, api, number, parts), *parts]
        try:
            self._size += _write(self._descriptor, buffers)
            if self._size > 2 * self._limit:  # nobody tidies
                self._read_on()
                self._begin_anew()
        except OSError as exc:
            self._give_up(exc)

    def _read_on(self, limit: int | None = None) -> bool:
        """Recall what has been written since the last time; whether that was all of it."""
        stop = self._recalled_to + limit if limit is not None else None
        for end, entry in entries.read(self._directory / FILE, self._recalled_to):
            self._recall.take(entry)
            self._recalled_to = end
            if stop is not None and end >= stop:
                return end >= self._size
        return True

    def _begin_anew(self) -> None:
        """A new file, with what is live at its head. Killed at any point, one of both is whole."""
        directory = self._directory
        live = [encode(self._recall.recalled())]
        part = directory / PART_FILE
        part.unlink(missing_ok=True)
        descriptor = _opened(part)
        try:
            size = _write(descriptor, [entries.head(LIVE, 0, 0, live), *live])
            (directory / FILE).rename(directory / OLD_FILE)
            part.rename(directory / FILE)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor = descriptor
        self._size = self._recalled_to = size
        self._limit = max(self._max_bytes, 2 * size)  # what is live may be long by itself

    def _give_up(self, exc: OSError) -> None:
        """A journal with a hole would have tokens sent twice, or lost: better none."""
        self.fault = f"{self._directory / FILE}: cannot be written: {exc.strerror}"
        self.close()
        try:
            self._remove()
        except OSError as again:
            self.fault += f"; and not removed: {again.strerror}"

    def _remove(self) -> None:
        # The youngest goes last: without it, an older one would be taken for it.
        for name in (PART_FILE, OLD_FILE, FILE):
            (self._directory / name).unlink(missing_ok=True)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _write(descriptor: int, buffers: list[bytes]) -> int:
    """All of it; how much that was. One call, unless the kernel takes only a part."""
    size = sum(map(len, buffers))
    written = os.writev(descriptor, buffers)
    if written < size:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    return size
