"""Sends requests when they are due, whatever becomes of the earlier ones.

The schedule is absolute, so waking up late once does not delay the rest. A cap on the requests in
flight holds the schedule itself back while it binds: released all at once, the held requests would
be a burst far above the asked rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from vdisagg.bench.progress import Progress
from vdisagg.bench.samples import Sample

Send = Callable[[int, float, float], Awaitable[Sample]]
"""Which request of `due`, when it is due, when the load started (on the loop's clock)."""


async def run(
    due: Sequence[float],
    send: Send,
    *,
    start: float | None = None,
    max_in_flight: int | None = None,
    progress: Progress | None = None,
) -> tuple[list[Sample], float]:
    """Send request i at `due[i]` seconds after `start` (on the loop's clock; now); wait for all.

    Returns the samples in order, and for how many seconds the cap held the schedule back.
    """
    loop = asyncio.get_running_loop()
    progress = progress or Progress(len(due))
    slots = asyncio.Semaphore(max_in_flight) if max_in_flight else None
    origin = loop.time() if start is None else start
    held = 0.0

    async def one(number: int, late_s: float) -> Sample:
        progress.on_sent(loop.time() - origin, late_s)
        try:
            sample = await send(number, due[number], origin)
        finally:
            if slots:
                slots.release()
        progress.on_finished(sample)
        return sample

    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[Sample]] = []
        for number, offset in enumerate(due):
            wait = origin + offset + held - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            if slots and slots.locked():
                before = loop.time()
                await slots.acquire()
                held += loop.time() - before
            elif slots:
                await slots.acquire()
            late_s = loop.time() - (origin + offset + held)
            tasks.append(group.create_task(one(number, late_s)))
    return [task.result() for task in tasks], held
