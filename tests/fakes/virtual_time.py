"""An event loop whose clock jumps to the next timer: an hour of load passes in a moment, exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    """Never waits for a timer: what it would have waited is added to `now`, and a little more, as real
    ones do. Sockets that are ready come before that; `settle_s` is how long they get to become so."""

    def __init__(self, overshoot_s: float, settle_s: float) -> None:
        super().__init__()
        self.now = 0.0
        self._overshoot_s = overshoot_s
        self._settle_s = settle_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0 and (ready := super().select(self._settle_s)):
            return ready
        assert timeout is not None, "nothing is left to wait for: the test would hang"
        if timeout > 0:
            self.now += timeout + self._overshoot_s
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, overshoot_s: float, settle_s: float) -> None:
        self._virtual = _Selector(overshoot_s, settle_s)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(
    main: Coroutine[Any, Any, Result], *, overshoot_s: float = 0.0, settle_s: float = 0.0
) -> Result:
    """As asyncio.run, on virtual time; each wait lasts `overshoot_s` too long.

    With `settle_s` (real seconds) both ends of a loopback connection may be in the loop: what one has
    written reaches the other before the clock jumps.
    """
    with asyncio.Runner(loop_factory=lambda: _Loop(overshoot_s, settle_s)) as runner:
        return runner.run(main)
