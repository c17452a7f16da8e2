"""One process's part of a load: `python -m vdisagg.bench.worker`, started by workers.py.

It reads a Job from its standard input and says Ready, reads the start instant, and sends when that
comes; Counts a few times a second; Done with all samples. Should its input end before that, whoever
started it is gone, and so is it. Each message is four bytes of length and MessagePack.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from vdisagg.bench import load, loop
from vdisagg.bench.client import Connections, Target, connections, stream
from vdisagg.bench.progress import Progress
from vdisagg.bench.samples import Sample

COUNTS_EVERY_S = 0.25
FILES = 65_536
NEVER = 1_000_000  # collections of the middle generation before one of the old
SWITCH_S = 0.0005  # the interpreter's own is 5 ms, which a due request would wait


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One request, ready to be sent."""

    number: int
    request_id: str
    due_s: float
    body: bytes
    expected_tokens: int
    """Another count is a failure; 0: any."""


class Job(msgspec.Struct, frozen=True):
    """What one process sends, in the order in which it is due."""

    target: Target
    path: str
    items: list[Item]
    max_in_flight: int | None = None


class Go(msgspec.Struct, frozen=True):
    """When the load starts, on the machine's monotonic clock: all processes share it."""

    start: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The job is here, and nothing is left to be done before the start."""


class Counts(msgspec.Struct, frozen=True, tag=True):
    """How far it is; latencies are those of the requests that have finished since the last time."""

    sent: int
    finished: int
    failed: int
    first_sent_s: float | None
    last_sent_s: float
    late: int
    latest_s: float
    ttft_s: list[float]
    tpot_s: list[float]


class Done(msgspec.Struct, frozen=True, tag=True):
    """All of it."""

    samples: list[Sample]
    held_s: float
    """For how long the cap held this process's schedule back."""


Message = Ready | Counts | Done


@asynccontextmanager
async def prepared(job: Job) -> AsyncIterator[Connections]:
    """What has to be there before the start, and nothing else in the way of what is due.

    The collector of garbage leaves old objects alone: going through those of 2,000 streams held a
    load up for 126 ms, and found nothing. Other threads (a view, whoever asks the controller) have to
    yield sooner than usual.
    """
    _allow_files()
    interval_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    async with connections(job.target) as session:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*thresholds[:2], NEVER)
        sys.setswitchinterval(SWITCH_S)
        try:
            yield session
        finally:
            sys.setswitchinterval(interval_s)
            gc.set_threshold(*thresholds)
            gc.unfreeze()


def _allow_files() -> None:
    """As many connections as the system lets us have: shells often begin with 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def carry(session: Connections, job: Job, *, start: float, progress: Progress) -> Done:
    """Send it all from `start` on (the loop's clock), and wait for the last answer."""

    async def send(place: int, due_s: float, start: float) -> Sample:
        item = job.items[place]
        return await stream(
            session,
            item.body,
            path=job.path,
            number=item.number,
            request_id=item.request_id,
            due=due_s,
            start=start,
            expected_tokens=item.expected_tokens,
        )

    samples, held_s = await load.run(
        [item.due_s for item in job.items],
        send,
        start=start,
        max_in_flight=job.max_in_flight,
        progress=progress,
    )
    return Done(samples, held_s)


class Told(Progress):
    """Also gathers the latencies that have not been told yet."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._ttft_s: list[float] = []
        self._tpot_s: list[float] = []

    def on_finished(self, sample: Sample) -> None:
        super().on_finished(sample)
        if sample.failure is None:
            self._ttft_s += [] if sample.ttft_s is None else [sample.ttft_s]
            self._tpot_s += [] if sample.tpot_s is None else [sample.tpot_s]

    def counts(self) -> Counts:
        """What there is, once."""
        counts = Counts(
            self.sent,
            self.finished,
            self.failed,
            self.first_sent_s,
            self.last_sent_s,
            self.late,
            self.latest_s,
            self._ttft_s,
            self._tpot_s,
        )
        self._ttft_s, self._tpot_s = [], []
        return counts


def framed(message: msgspec.Struct) -> bytes:
    """A message as it goes through a pipe."""
    text = msgspec.msgpack.encode(message)
    return len(text).to_bytes(4) + text


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next message's bytes. Raises IncompleteReadError at the end."""
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


def _say(message: Message) -> None:
    sys.stdout.buffer.write(framed(message))
    sys.stdout.buffer.flush()


async def _tell(progress: Told) -> None:
    while True:
        await asyncio.sleep(COUNTS_EVERY_S)
        _say(progress.counts())


async def main() -> None:
    """From the first message to the last."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    job = msgspec.msgpack.decode(await read_frame(reader), type=Job)
    async with prepared(job) as session:
        _say(Ready())
        go = msgspec.msgpack.decode(await read_frame(reader), type=Go)
        progress = Told(len(job.items))
        telling = asyncio.create_task(_tell(progress))
        sending = asyncio.create_task(carry(session, job, start=go.start, progress=progress))
        left_alone = asyncio.create_task(reader.read(1))
        await asyncio.wait({telling, sending, left_alone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (telling, left_alone):
            task.cancel()
        if sending.done():
            _say(progress.counts())
            _say(sending.result())
        else:
            sending.cancel()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, asyncio.IncompleteReadError):  # it is left alone
        loop.run(main())
