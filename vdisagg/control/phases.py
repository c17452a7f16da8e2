"""When what happened to a request, noted as it goes; recent.py keeps it. Pure.

Nothing is noted per token. A request that was begun again is timed by the last try; one whose answer was
continued by the try that its client heard first of, up to the end of all. What an earlier controller had
in hand is not timed: its beginning went with that one.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from vdisagg.control import wire
from vdisagg.errors import ProtocolError


@dataclass(slots=True)
class Instants:
    """Of one request: when it was sent to an engine, and what came of it. The controller's clock, in
    seconds; None: not yet, or never."""

    sent: float
    prefilled: float | None = None
    """When prefill's output came, and the decode leg was sent."""
    prefill: str = ""
    first: float | None = None
    """When the leg that answers gave its first output."""
    engine_queue_s: float | None = None

    def note_prefill(self, instance: str, output: wire.Output, *, now: float) -> None:
        """A prefill leg has ended well."""
        if self.prefilled is None and self.first is None:
            self.prefilled, self.prefill = now, instance
            self.engine_queue_s = queued_s(output.events)

    def note_answer(self, output: wire.Output, *, now: float) -> None:
        """An output of a leg that answers."""
        if self.first is None:
            self.first = now
            if self.prefilled is None:
                self.engine_queue_s = queued_s(output.events)


def queued_s(events: msgspec.Raw) -> float | None:
    """How long a request has waited for its first step, by what its engine's first output tells; None
    where it tells nothing of that (--disable-log-stats).

    Both instants are of one engine's clock, and only their difference means anything.
    """
    if events == wire.NIL:
        return None
    try:
        told = wire.decode_events(events)
    except ProtocolError:
        return None
    queued = next((event.timestamp for event in told if event.type == wire.QUEUED), None)
    begun = next((event.timestamp for event in told if event.type == wire.SCHEDULED), None)
    return None if queued is None or begun is None else max(0.0, begun - queued)
