"""Requests that wait for a way, in order of arrival. Pure.

There is a line for those that need a link, and one for those that any engine can serve: neither is held
up by what the other lacks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from vdisagg.control.flight import Flight
from vdisagg.control.placing import Wait, Way


@dataclass
class Line:
    """Those that wait for the same thing."""

    nowhere: str
    """What there is none of, when there is no way."""
    crowded: str
    """What there is too much of, when there is none just now."""
    flights: deque[Flight] = field(default_factory=deque)
    hoping_since: float | None = None
    """Since when they have had nothing but hope."""

    def look(self, way: Way | Wait | None, *, now: float) -> None:
        """There is, or is no, way for the first of them."""
        if way is not Wait.HOPE:
            self.hoping_since = None
        elif self.hoping_since is None:
            self.hoping_since = now

    def paused(self, by_s: float) -> None:
        """We were stopped for so long: nobody could have shown them a way."""
        if self.hoping_since is not None:
            self.hoping_since += by_s

    def why(self, way: Way | Wait | None) -> str:
        """Why its first one is still here, for people."""
        if way is Wait.CROWDED:
            return self.crowded
        return "others were before it" if isinstance(way, Way) else self.nowhere
