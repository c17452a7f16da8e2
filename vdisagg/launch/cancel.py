"""The word that nobody wants something any more: it wakes, from another thread, whoever still waits for it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Cancel:
    """Is called once, and stays called. Safe to use from several threads."""

    def __init__(self) -> None:
        self._called = threading.Event()
        self._wakes: list[Callable[[], object]] = []
        self._changing = threading.Lock()

    @property
    def called(self) -> bool:
        """Whether it has been called."""
        return self._called.is_set()

    def __call__(self) -> None:
        """Wake all who wait now, and whoever is about to."""
        with self._changing:
            self._called.set()
            wakes = tuple(self._wakes)
        for wake in wakes:
            wake()

    def wait(self, limit_s: float) -> bool:
        """Wait for it to be called; whether it was within the limit."""
        return self._called.wait(limit_s)

    @contextmanager
    def wakes(self, wake: Callable[[], object]) -> Iterator[None]:
        """Within the block, a call calls `wake` too, in the caller's thread; one that came before does so at
        once. `wake` must not wait, and may be called when the block has just ended."""
        with self._changing:
            self._wakes.append(wake)
        try:
            if self.called:
                wake()
            yield
        finally:
            with self._changing:
                self._wakes.remove(wake)
