import asyncio
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from fakes.virtual_time import run
from vdisagg.bench.arrivals import offsets
from vdisagg.bench.load import Send
from vdisagg.bench.load import run as load
from vdisagg.bench.progress import Progress
from vdisagg.bench.samples import Sample


def lasting(seconds: Callable[[int], float]) -> Send:
    """A request that takes that long and is over."""

    async def send(number: int, due: float, start: float) -> Sample:
        sent = asyncio.get_running_loop().time() - start
        await asyncio.sleep(seconds(number))
        return Sample(number=number, due_s=due, sent_s=sent)

    return send


def loaded(
    due: Sequence[float],
    seconds: Callable[[int], float],
    *,
    overshoot_s: float = 0.0,
    **options: Any,
) -> tuple[list[Sample], float]:
    return run(load(due, lasting(seconds), **options), overshoot_s=overshoot_s)


@pytest.mark.parametrize(("count", "rate"), [(300, 2.6), (5000, 200.0)])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, math.inf])
@pytest.mark.parametrize("cap", [None, 1000])
def test_f01_late_wake_ups_do_not_add_up(
    count: int, rate: float, burstiness: float, cap: int | None
) -> None:
    due = offsets(count, rate_per_s=rate, burstiness=burstiness, rng=Random(3))
    samples, held = loaded(due, lambda _: 0.05, overshoot_s=0.002, max_in_flight=cap)
    sent = [sample.sent_s for sample in samples]
    # Two wake-ups may fall together: a request's own and an answer's just before it.
    assert max(sample.late_s for sample in samples) < 0.0041
    assert min(sample.late_s for sample in samples) >= -1e-9
    assert (count - 1) / (sent[-1] - sent[0]) == pytest.approx(rate, rel=0.01)
    assert held == 0


def test_slow_answers_do_not_slow_the_sending() -> None:
    due = [0.1 * i for i in range(50)]
    samples, _ = loaded(due, lambda _: 1000.0)
    assert [sample.sent_s for sample in samples] == pytest.approx(due)


def test_f01_a_cap_that_binds_makes_no_burst() -> None:
    due = [0.1 * i for i in range(100)]
    # The first four block everything for 3 s: 30 requests would be due at once after it.
    samples, held = loaded(due, lambda i: 3.0 if i < 4 else 0.01, max_in_flight=4)
    sent = [sample.sent_s for sample in samples]
    gaps = [b - a for a, b in itertools.pairwise(sent)]
    assert min(gaps) == pytest.approx(0.1)
    assert held == pytest.approx(2.6)
    assert samples[-1].late_s == pytest.approx(held)


def test_the_cap_is_never_exceeded_and_is_reached() -> None:
    flying = 0
    most = 0

    async def send(number: int, due: float, start: float) -> Sample:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.1 + number % 3)
        flying -= 1
        return Sample(number=number, due_s=due, sent_s=0.0)

    samples, _ = run(load([0.0] * 200, send, max_in_flight=32))
    assert most == 32
    assert [sample.number for sample in samples] == list(range(200))


def test_progress_counts_what_is_sent_finished_and_failed() -> None:
    async def send(number: int, due: float, start: float) -> Sample:
        return Sample(number=number, due_s=due, sent_s=due, failure="x" if number % 2 else None)

    progress = Progress(5)
    run(load([0.0] * 5, send, progress=progress))
    assert (progress.sent, progress.finished, progress.failed) == (5, 5, 2)


def test_gaps_between_sends_keep_their_distribution() -> None:
    due = offsets(5000, rate_per_s=200.0, burstiness=1.0, rng=Random(3))
    samples, _ = loaded(due, lambda _: 0.5)
    sent = [sample.sent_s for sample in samples]
    gaps = [b - a for a, b in itertools.pairwise(sent)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1.0, abs=0.05)
