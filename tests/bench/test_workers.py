"""Loads that several processes send: how they are dealt out, and what becomes of the processes."""

import asyncio
import itertools
import math
import os
import signal
import statistics
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web

from fakes.http_front_end import FakeFrontEnd, completion
from fakes.virtual_time import run as run_virtually
from vdisagg.bench import load, loop, workers
from vdisagg.bench.arrivals import offsets
from vdisagg.bench.asks import Ask
from vdisagg.bench.bodies import PATHS, body
from vdisagg.bench.client import Target
from vdisagg.bench.progress import Progress
from vdisagg.bench.samples import Sample
from vdisagg.bench.worker import Go, Item, Job, framed, read_frame
from vdisagg.errors import Failure

BODY = body("m", Ask([5, 6, 7], 4), endpoint="completions", running_usage=True)


def job(due: list[float], *, url: str = "http://127.0.0.1:9", cap: int | None = None) -> Job:
    items = [Item(number, f"r-{number}", due_s, BODY, 4) for number, due_s in enumerate(due)]
    return Job(Target(url=url, model="m"), PATHS["completions"], items, cap)


def children() -> set[str]:
    """Our child processes that have not ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(path.parent.name)
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_request_is_dealt_out_once_and_in_order(count: int) -> None:
    parts = workers.split(job([0.1 * i for i in range(7)]), count)
    dealt = [[item.number for item in part.items] for part in parts]
    assert (
        dealt
        == {
            1: [[0, 1, 2, 3, 4, 5, 6]],
            2: [[0, 2, 4, 6], [1, 3, 5]],
            3: [[0, 3, 6], [1, 4], [2, 5]],
        }[count]
    )


@pytest.mark.parametrize(
    ("cap", "count", "caps"),
    [(8, 2, [4, 4]), (8, 3, [3, 3, 2]), (3, 3, [1, 1, 1]), (None, 2, [None, None])],
)
def test_a_caps_parts_come_to_the_cap(cap: int | None, count: int, caps: list[int | None]) -> None:
    parts = workers.split(job([0.0] * 9, cap=cap), count)
    assert [part.max_in_flight for part in parts] == caps


@pytest.mark.parametrize(("count", "rate"), [(300, 2.6), (5000, 200.0)])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, math.inf])
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("cap", [None, 1000])
def test_f01_several_processes_keep_one_schedule(
    count: int, rate: float, burstiness: float, processes: int, cap: int | None
) -> None:
    due = offsets(count, rate_per_s=rate, burstiness=burstiness, rng=Random(3))
    sent: list[float] = []
    for part in workers.split(job(due, cap=cap), processes):
        places = [item.due_s for item in part.items]

        async def send(place: int, due_s: float, start: float) -> Sample:
            at = asyncio.get_running_loop().time() - start
            await asyncio.sleep(0.05)
            return Sample(number=place, due_s=due_s, sent_s=at)

        samples, held = run_virtually(
            load.run(places, send, start=1.0, max_in_flight=part.max_in_flight), overshoot_s=0.002
        )
        assert held == 0
        assert max(sample.late_s for sample in samples) < 0.0041
        sent += [sample.sent_s for sample in samples]
    sent.sort()
    assert (count - 1) / (sent[-1] - sent[0]) == pytest.approx(rate, rel=0.01)
    gaps = [b - a for a, b in itertools.pairwise(sent)]
    wanted = [b - a for a, b in itertools.pairwise(due)]
    spread = statistics.stdev(gaps) / statistics.mean(gaps)
    assert spread == pytest.approx(statistics.stdev(wanted) / statistics.mean(wanted), abs=0.2)


@pytest.mark.parametrize(
    ("load", "count"),
    [
        ({"rate_per_s": 2.6, "output_len": 200}, 1),
        ({"rate_per_s": 200.0, "output_len": 32}, 1),
        ({"rate_per_s": 1000.0, "output_len": 200}, 8),
        ({"rate_per_s": 1000.0, "output_len": 200, "cores": 2}, 2),
        ({"rate_per_s": 1000.0, "output_len": 200, "max_in_flight": 3}, 3),
        ({"rate_per_s": math.inf, "output_len": 200}, 4),
        ({"rate_per_s": math.inf, "output_len": 200, "max_in_flight": 100}, 1),
        ({"rate_per_s": math.inf, "output_len": 200, "requests": 1}, 1),
    ],
)
def test_as_many_processes_as_the_load_takes_and_the_machine_has(
    load: dict[str, Any], count: int
) -> None:
    facts: dict[str, Any] = {"requests": 8000, "max_in_flight": None, "cores": 8, **load}
    assert workers.needed(**facts) == count


def carried(
    due: list[float], front_end: FakeFrontEnd, *, processes: int, cap: int | None = None
) -> tuple[list[Sample], float, Progress, list[float]]:
    """The samples, for how long the cap held back, what was counted, and the start instant."""
    progress = Progress(len(due))
    starts: list[float] = []

    async def main() -> tuple[list[Sample], float]:
        async with front_end.serving():
            return await workers.run(
                job(due, url=front_end.url, cap=cap),
                workers=processes,
                progress=progress,
                on_start=starts.append,
            )

    samples, held = loop.run(main())
    assert children() == set()
    return samples, held, progress, starts


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_f01_over_the_wire_every_request_is_sent_once_and_none_early(processes: int) -> None:
    front_end = FakeFrontEnd()
    due = offsets(100, rate_per_s=200.0, burstiness=1.0, rng=Random(3))
    samples, held, progress, starts = carried(due, front_end, processes=processes)
    assert [sample.number for sample in samples] == list(range(100))
    assert [sample.due_s for sample in samples] == due
    assert {sample.failure for sample in samples} == {None}
    assert min(sample.late_s for sample in samples) >= 0
    came = sorted(front_end.request_ids)
    assert came == sorted(sample.request_id for sample in samples)
    assert (progress.sent, progress.finished, progress.failed, held) == (100, 100, 0, 0)
    assert len(progress.ttft_s.values) == 100
    assert len(starts) == 1


def test_a_cap_holds_over_all_processes_together() -> None:
    front_end = FakeFrontEnd()
    flying = 0
    most = 0

    async def counted(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.02)
        flying -= 1
        return await completion(request, body)

    front_end.answer = counted
    samples, *_ = carried([0.0] * 30, front_end, processes=2, cap=5)
    assert len(samples) == 30
    assert most <= 5


def test_failures_come_back_as_samples() -> None:
    async def main() -> tuple[list[Sample], float]:
        return await workers.run(
            job([0.0] * 4), workers=2, progress=Progress(4), on_start=lambda _: None
        )

    samples, _ = asyncio.run(main())
    assert [sample.failure for sample in samples] == ["cannot connect"] * 4


def test_a_process_that_dies_ends_the_run_and_is_named() -> None:
    """The front end kills one of them in the midst of its stream."""
    front_end = FakeFrontEnd()
    killed: list[int] = []

    async def deadly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not killed:
            killed.append(int(min(children())))
            os.kill(killed[0], signal.SIGKILL)
        await asyncio.sleep(3600)
        return web.Response()

    front_end.answer = deadly
    with pytest.raises(Failure, match=r"load process [12] of 2 was ended by signal 9 .* next: "):
        carried([0.0] * 4, front_end, processes=2)
    assert children() == set()


def test_a_process_that_cannot_start_is_a_failure_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = (workers._COMMAND[0], "-c", "import no_such_module")
    monkeypatch.setattr(workers, "_COMMAND", command)
    with pytest.raises(Failure, match=r"ended with exit code 1 .*No module named 'no_such_module'"):
        carried([0.0] * 4, FakeFrontEnd(), processes=2)
    assert children() == set()


def test_being_interrupted_leaves_no_process_behind() -> None:
    """As Ctrl-C does it: SIGINT comes while streams are open."""
    front_end = FakeFrontEnd()

    async def interrupting(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(front_end.bodies) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(3600)
        return web.Response()

    front_end.answer = interrupting
    with pytest.raises(KeyboardInterrupt):
        carried([0.0] * 4, front_end, processes=2)
    assert children() == set()


def test_a_process_that_is_left_alone_ends() -> None:
    async def main() -> int:
        process = await asyncio.create_subprocess_exec(
            *workers._COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin
        assert process.stdout
        process.stdin.write(framed(job([3600.0])))
        await process.stdin.drain()
        await read_frame(process.stdout)
        process.stdin.write(framed(Go(asyncio.get_running_loop().time())))
        process.stdin.close()
        async with asyncio.timeout(30):
            await process.stdin.wait_closed()
            await process.stdout.read()
            return await process.wait()

    assert asyncio.run(main()) == 0
