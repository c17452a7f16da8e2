"""The events of a run as they stand in its controller's state directory, readable without a controller.

{"run": 1700000000.0}                                          a run begins, or a file
{"at": 1700000001.5, "subject": "p0", "what": …, "number": 1}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from vdisagg.cluster.admin import Event
from vdisagg.cluster.leftovers import EVENTS_FILE, OLD_EVENTS_FILE

KEPT: Final = 1000
"""How many of a run's last events are shown."""


class RunBegins(msgspec.Struct):
    """The events that follow are of the run whose record was made at this time (Unix time)."""

    run: float


class _Line(msgspec.Struct):
    run: float | None = None
    at: float = 0.0
    subject: str = ""
    what: str = ""
    number: int = 0


class Happened(msgspec.Struct, frozen=True):
    """What the files say."""

    events: list[Event]
    """The last ones of the run that was asked for."""
    last: int
    """The highest number there is, of whatever run."""
    current: bool
    """Whether that run is the last one in the files."""


def read(directory: Path, *, run: float) -> Happened:
    """The events of the run whose record was made at `run`. Raises OSError.

    Lines that can't be read, such as half a last one, are left out.
    """
    events: deque[Event] = deque(maxlen=KEPT)
    last, current = 0, False
    for line in _lines(directory):
        if line.run is not None:
            current = line.run == run
        elif line.number:
            last = max(last, line.number)
            if current:
                events.append(Event(line.at, line.subject, line.what, line.number))
    return Happened(list(events), last, current)


def _lines(directory: Path) -> Iterator[_Line]:
    for name in (OLD_EVENTS_FILE, EVENTS_FILE):
        try:
            text = (directory / name).read_bytes()
        except FileNotFoundError:
            continue
        for line in text.splitlines():
            try:
                yield msgspec.json.decode(line, type=_Line)
            except msgspec.DecodeError:
                continue
