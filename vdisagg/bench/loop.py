"""An event loop for loads: a burst of answers does not hold up the request that is due next.

asyncio looks at its timers once all that is ready to be read has been read. With 2,000 streams that can be
a thousand chunks, and 50 ms. Here it is a few at a time; the kernel hands out the others next.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

AT_ONCE: Final = 32
"""A chunk takes 60 µs or so, and these two milliseconds."""

T = TypeVar("T")


class _Few(selectors.EpollSelector):
    """Asks the kernel for no more than AT_ONCE. Leaving out what it has given would starve some: only
    what it was not asked for stays at the front of its queue."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        keys = self.get_map()
        found = []
        for fd, ready in self._epoll.poll(-1 if timeout is None else max(0, timeout), AT_ONCE):
            # As selectors has it: an error or a hang-up is whatever is waited for.
            read = selectors.EVENT_READ if ready & ~select.EPOLLOUT else 0
            write = selectors.EVENT_WRITE if ready & ~select.EPOLLIN else 0
            if (key := keys.get(fd)) is not None:
                found.append((key, (read | write) & key.events))
        return found

    def close(self) -> None:
        self._epoll.close()
        super().close()


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, Ctrl-C included."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Few())) as runner:
        return runner.run(main)
