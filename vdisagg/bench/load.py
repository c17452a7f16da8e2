"""Sends requests when they are due, whatever becomes of the earlier ones.

The schedule is absolute, so waking up late once does not delay the rest. A cap on the requests in
flight holds the schedule itself back while it binds: released all at once, the held requests would
be a burst far above the asked rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from vdisagg.bench.samples import Sample

Send = Callable[[int, float, float], Awaitable[Sample]]
"""Number of the request, when it is due, when the load started (on the loop's clock)."""


class Progress:
    """Counts for whoever watches."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.sent = 0
        self.finished = 0
        self.failed = 0


async def run(
    due: Sequence[float],
    send: Send,
    *,
    max_in_flight: int | None = None,
    progress: Progress | None = None,
) -> tuple[list[Sample], float]:
    """Send request i at `due[i]` seconds after the start; wait for all.

    Returns the samples in order, and for how many seconds the cap held the schedule back.
    """
    loop = asyncio.get_running_loop()
    progress = progress or Progress(len(due))
    slots = asyncio.Semaphore(max_in_flight) if max_in_flight else None
    start = loop.time()
    held = 0.0

    async def one(number: int) -> Sample:
        progress.sent += 1
        try:
            sample = await send(number, due[number], start)
        finally:
            if slots:
                slots.release()
        progress.finished += 1
        progress.failed += sample.failure is not None
        return sample

    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[Sample]] = []
        for number, offset in enumerate(due):
            wait = start + offset + held - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            if slots and slots.locked():
                before = loop.time()
                await slots.acquire()
                held += loop.time() - before
            elif slots:
                await slots.acquire()
            tasks.append(group.create_task(one(number)))
    return [task.result() for task in tasks], held
