"""How long something may take on a machine that stands still now and then: those times are nobody's."""

from __future__ import annotations

import time
from typing import Final

LOOK_S: Final = 0.1
"""What one look takes at most, where it is at something near."""


class Limit:
    """Runs from now on. `over` is asked after each look, which counts for no more than `look_s`."""

    def __init__(self, limit_s: float, *, look_s: float = LOOK_S) -> None:
        self._left_s = limit_s
        self._look_s = look_s
        self._looked = time.monotonic()

    def over(self) -> bool:
        """Whether it has been reached."""
        now = time.monotonic()
        self._left_s -= min(now - self._looked, self._look_s)
        self._looked = now
        return self._left_s <= 0
