"""The last requests that have finished, and when what happened to each: the answer to `timings`. Pure."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

import msgspec

from vdisagg.cluster.admin import Timing, Timings
from vdisagg.control.flight import Flight

KEPT: Final = 4096
"""Requests: at 100 a second, the last 40 seconds. 1.5 MB."""

PAGE: Final = 256
"""In one answer: some 50 kB, which a Unix socket takes without waiting for the reader."""


class Recent:
    """Numbered from 1 on; a new controller begins anew."""

    def __init__(self, kept: int = KEPT) -> None:
        self._timings: deque[Timing] = deque(maxlen=kept)
        self._last = 0

    def add(self, flight: Flight, *, now: float) -> None:
        """A user's request has finished; its last leg is still noted in it."""
        if not flight.timed:
            return
        self._last += 1
        received, instants = flight.started, flight.instants
        prefilled, first = instants.prefilled, instants.first
        self._timings.append(
            Timing(
                self._last,
                flight.front_id,
                received,
                flight.at,
                sent_s=instants.sent - received,
                first_s=(now if first is None else first) - received,
                end_s=now - received,
                prefill=instants.prefill,
                prefilled_s=None if prefilled is None else prefilled - received,
                engine_queue_s=instants.engine_queue_s,
            )
        )

    def after(self, number: int, *, started: float, to_unix: float) -> Timings:
        """A page of those with higher numbers. `started`: Unix time; `to_unix`: what to add to the
        controller's clock to get it."""
        behind = self._last - len(self._timings)
        begin = max(0, number - behind)
        return Timings(
            [
                msgspec.structs.replace(one, received=one.received + to_unix)
                for one in islice(self._timings, begin, begin + PAGE)
            ],
            last=self._last,
            dropped=max(0, behind - max(0, number)),
            started=started,
        )
