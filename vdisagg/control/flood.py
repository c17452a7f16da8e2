"""Keeps the events readable when every request fails for one reason. Pure.

Each request that fails is an event, as long as they are few; of a flood the first ones are, and then a
line now and then that says how many more there were.
"""

from __future__ import annotations

from typing import Final

from vdisagg.control.actions import Note

BURST: Final = 20
"""Events about requests that are told one by one…"""

PERIOD_S: Final = 10.0
"""…in so many seconds."""


class Flood:
    """Lets notes through. Only those about requests can be too many."""

    def __init__(self) -> None:
        self._begun = float("-inf")
        self._told = 0
        self._kept_back = 0
        self._last = ""

    def admit(self, note: Note, *, now: float) -> list[Note]:
        """What is to be told of a note: itself, or nothing yet."""
        if note.subject != "request":
            return [note]
        over = self.due(now=now)
        self._told += 1
        if self._told <= BURST:
            return [*over, note]
        self._kept_back += 1
        self._last = note.what
        return over

    def due(self, *, now: float) -> list[Note]:
        """What is to be told when a period is over. Call now and then."""
        if now - self._begun < PERIOD_S:
            return []
        kept_back, self._kept_back = self._kept_back, 0
        self._begun, self._told = now, 0
        if not kept_back:
            return []
        return [Note("request", f"{kept_back} more in {PERIOD_S:g} s; the last: {self._last}")]
