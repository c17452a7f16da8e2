"""A load sent by several processes, where one can't send it on time.

The schedule stays one: its requests are dealt out in turn, and all processes start at the same
instant. They are plain processes that are spoken to over pipes, not multiprocessing's: those would
import the command's main module again each, and live on when this process is killed; these see
their input end. A process group of their own keeps a terminal's Ctrl-C from them: it comes
to the one that ends them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from typing import IO, Any, TypeVar

import msgspec

from vdisagg.bench.progress import Progress
from vdisagg.bench.samples import Sample
from vdisagg.bench.worker import (
    Counts,
    Done,
    Go,
    Job,
    Message,
    Ready,
    carry,
    framed,
    prepared,
    read_frame,
)
from vdisagg.errors import Failure

READY_S = 60.0
"""Importing and reading the job takes a second or two, and longer on a machine that is busy."""
HEAD_START_S = 0.25
"""From the last process's word that it is ready to the start."""
HEAD_START_ALONE_S = 0.05
"""For what `on_start` does, where this process is the only one."""
END_S = 2.0

# What one process was measured to use (benchmarks/client.py), on a slow core.
REQUEST_CPU_S = 750e-6
CHUNK_CPU_S = 60e-6
SHARE = 0.6
"""Of a core, that one process may need on average: what is beyond it is for bursts."""
STREAMS = 2000
"""That one process was seen to hold."""

_COMMAND = (sys.executable, "-m", "vdisagg.bench.worker")
T = TypeVar("T")
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def needed(
    *, rate_per_s: float, requests: int, output_len: float, max_in_flight: int | None, cores: int
) -> int:
    """How many processes a load takes: by what it costs where it has a rate, else by its streams.

    `output_len` is a mean, in tokens, each of which may be a chunk.
    """
    if math.isinf(rate_per_s):
        wanted = math.ceil(min(requests, max_in_flight or requests) / STREAMS)
    else:
        cost = rate_per_s * (REQUEST_CPU_S + output_len * CHUNK_CPU_S)
        wanted = math.ceil(cost / SHARE)
    return max(1, min(wanted, cores, requests, max_in_flight or requests))


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def split(job: Job, workers: int) -> list[Job]:
    """Request i goes to process i modulo `workers`; caps differ by one at most, and their sum is the
    cap. `workers` must not be above it, nor above the number of requests."""
    return [
        msgspec.structs.replace(
            job,
            items=job.items[place::workers],
            max_in_flight=None
            if job.max_in_flight is None
            else job.max_in_flight // workers + (place < job.max_in_flight % workers),
        )
        for place in range(workers)
    ]


async def run(
    job: Job, *, workers: int, progress: Progress, on_start: Callable[[float], None]
) -> tuple[list[Sample], float]:
    """Send it all, and wait for the last answer. One worker is this process itself.

    `on_start` is told the start instant (the loop's clock), a moment before it. Returns the samples
    in order, and for how long the cap held the schedule back: the longest of any process. Raises
    Failure when a process ends before its time; none is left running, whatever happens.
    """
    if workers == 1:
        async with prepared(job) as session:
            start = asyncio.get_running_loop().time() + HEAD_START_ALONE_S
            on_start(start)
            done = await carry(session, job, start=start, progress=progress)
        return done.samples, done.held_s
    crew = [_Worker(place, workers, part) for place, part in enumerate(split(job, workers), 1)]
    try:
        await _together(worker.begin() for worker in crew)
        start = asyncio.get_running_loop().time() + HEAD_START_S
        on_start(start)
        parts = await _together(worker.carry(start, crew, progress) for worker in crew)
    finally:
        await asyncio.gather(*(worker.end() for worker in crew))
    samples = sorted((s for part in parts for s in part.samples), key=lambda s: s.number)
    return samples, max(part.held_s for part in parts)


class _Worker:
    """One process."""

    def __init__(self, place: int, of: int, job: Job) -> None:
        self._name = f"load process {place} of {of}"
        self._job = job
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
        self._process: asyncio.subprocess.Process | None = None
        self.counts: Counts | None = None

    async def begin(self) -> None:
        """Start it, give it its job, and wait until it is ready. Raises Failure."""
        self._process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            process_group=0,
        )
        try:
            async with asyncio.timeout(READY_S):
                await self._tell(self._job)
                message = await self._next()
        except TimeoutError:
            raise Failure(
                f"{self._name} was not ready within {READY_S:g} s; nothing was sent; "
                "next: see whether the machine is overloaded, or say fewer workers"
            ) from None
        assert isinstance(message, Ready)

    async def carry(self, start: float, crew: list[_Worker], progress: Progress) -> Done:
        """Let it send its part. Raises Failure when it ends before that is done."""
        await self._tell(Go(start))
        while not isinstance(message := await self._next(), Done):
            if isinstance(message, Counts):
                self.counts = message
                _sum([worker.counts for worker in crew], message, progress)
        return message

    async def end(self) -> None:
        """Whatever it is doing. Its input ends; it is killed if that doesn't end it."""
        self._errors.close()
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        # Both pipes' ends have to have been seen, or the event loop warns of them when it closes.
        with contextlib.suppress(ConnectionError):
            await process.stdin.wait_closed()
        await process.stdout.read()

    async def _tell(self, message: Job | Go) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(framed(message))
            await self._process.stdin.drain()
        except ConnectionError:
            raise await self._gone() from None

    async def _next(self) -> Message:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            frame = await read_frame(self._process.stdout)
        except asyncio.IncompleteReadError:
            raise await self._gone() from None
        return _messages.decode(frame)

    async def _gone(self) -> Failure:
        assert self._process is not None
        code = await self._process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return Failure(
            f"{self._name} {how} before its requests were done{''.join(f': {line}' for line in said)}; "
            "the run was stopped, and nothing of it counts; next: see whether memory ran out "
            "(`dmesg`), and run it again"
        )


async def _together(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first that fails ends the others, and its failure is the one that is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except* Failure as failures:
        first = failures.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first


def _sum(all_counts: list[Counts | None], new: Counts, progress: Progress) -> None:
    """What all processes have told last, and the latencies that are new."""
    counts = [each for each in all_counts if each is not None]
    progress.sent = sum(each.sent for each in counts)
    progress.finished = sum(each.finished for each in counts)
    progress.failed = sum(each.failed for each in counts)
    progress.late = sum(each.late for each in counts)
    progress.latest_s = max(each.latest_s for each in counts)
    progress.last_sent_s = max(each.last_sent_s for each in counts)
    first = [each.first_sent_s for each in counts if each.first_sent_s is not None]
    progress.first_sent_s = min(first, default=None)
    for value in new.ttft_s:
        progress.ttft_s.add(value)
    for value in new.tpot_s:
        progress.tpot_s.add(value)
