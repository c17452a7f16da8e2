"""Time: one deadline for a step with several waits in it, and how long to stay away from a busy host."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from vdisagg.errors import Unreachable
from vdisagg.launch.cancel import Cancel


class Deadline:
    """A moment by which something has to be done; or the one at which nobody wants it any more."""

    def __init__(self, limit_s: float, cancel: Cancel | None = None) -> None:
        self.limit_s = limit_s
        self.cancel = cancel or Cancel()
        self._end = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Seconds until then, never negative."""
        return 0.0 if self.cancel.called else max(0.0, self._end - time.monotonic())

    def refuse_if_cancelled(self, where: str) -> None:
        """Raises Unreachable where nobody wants it any more."""
        if self.cancel.called:
            raise Unreachable(f"{where}: the connection was broken off here")


@contextmanager
def at_most(limit_s: float, stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` in another thread if the block takes longer: for waits that know no timeout."""
    timer = Timer(limit_s, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def back_off(rng: random.Random, *, first_s: float = 0.1, most_s: float = 2.0) -> Iterator[float]:
    """Seconds to wait before each further try: doubled, with half of it by chance, so that many who were
    refused together do not come back together."""
    wait_s = first_s
    while True:
        yield wait_s * rng.uniform(0.5, 1.0)
        wait_s = min(wait_s * 2, most_s)
