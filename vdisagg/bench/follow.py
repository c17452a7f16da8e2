"""What our own cluster does while a load is on it: its engines once a second, its requests' phases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from vdisagg.bench.result import LoadPoint
from vdisagg.bench.samples import Phases, Sample

EVERY_S = 1.0
LAST_TRIES = 5
LAST_WAIT_S = 0.1
"""The controller may hear of an answer's end a moment after the client."""


class Tells(Protocol):
    """What is asked of the controller; see `Insight`. Calls take milliseconds, in a thread."""

    def phases(self) -> dict[str, Phases]: ...
    def load_points(self, at_s: float) -> list[LoadPoint]: ...


class Followed:
    """What was gathered."""

    def __init__(self) -> None:
        self.loads: list[LoadPoint] = []
        self.phases: dict[str, Phases] = {}
        """By request id."""
        self.begun: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """When the load starts, on the loop's clock."""
        self.ended = asyncio.Event()

    def start(self, at: float) -> None:
        """The load starts then."""
        self.begun.set_result(at)

    async def finish(self, tells: Tells, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with their phases, those that the controller has told."""
        wanted = {sample.request_id for sample in samples if sample.failure is None}
        for left in reversed(range(LAST_TRIES)):
            self.phases |= await asyncio.to_thread(tells.phases)
            if not left or not self.phases or wanted <= self.phases.keys():
                break
            await asyncio.sleep(LAST_WAIT_S)
        return [
            msgspec.structs.replace(sample, phases=self.phases.get(sample.request_id))
            for sample in samples
        ]


@asynccontextmanager
async def following(tells: Tells | None) -> AsyncIterator[Followed]:
    """Gathers in the background from `start` on. None: nothing."""
    followed = Followed()
    if tells is None:
        yield followed
        return
    task = asyncio.create_task(_gather(tells, followed))
    try:
        yield followed
    except BaseException:
        task.cancel()
        raise
    followed.ended.set()  # not cancelled: an answer that is under way would be lost
    await task


async def _gather(tells: Tells, followed: Followed) -> None:
    clock = asyncio.get_running_loop().time
    start = await followed.begun
    wait = start - clock()
    while not await _within(wait, followed.ended):
        followed.loads += await asyncio.to_thread(tells.load_points, clock() - start)
        followed.phases |= await asyncio.to_thread(tells.phases)
        wait = EVERY_S - (clock() - start) % EVERY_S


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Whether it comes within that time."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            return await event.wait()
    except TimeoutError:
        return False
