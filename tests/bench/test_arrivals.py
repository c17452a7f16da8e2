import itertools
import math
import statistics
from random import Random

import pytest

from vdisagg.bench.arrivals import offsets


def gaps(due: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(due)]


def drawn(count: int, rate: float, burstiness: float, seed: int = 1) -> list[float]:
    return offsets(count, rate_per_s=rate, burstiness=burstiness, rng=Random(seed))


@pytest.mark.parametrize(("count", "rate"), [(300, 2.6), (5000, 200.0)])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, math.inf])
def test_f01_the_scheduled_rate_is_the_asked_one(
    count: int, rate: float, burstiness: float
) -> None:
    due = drawn(count, rate, burstiness)
    assert len(due) == count
    assert due[0] == 0
    assert due == sorted(due)
    assert (count - 1) / due[-1] == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (math.inf, 0.0)])
def test_f01_gaps_vary_as_the_burstiness_says(burstiness: float, variation: float) -> None:
    found = gaps(drawn(20_000, 200.0, burstiness))
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(variation, abs=0.06)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert drawn(5, math.inf, 1.0) == [0.0] * 5


def test_the_seed_fixes_the_schedule_and_another_seed_another() -> None:
    assert drawn(50, 3.0, 1.0, seed=7) == drawn(50, 3.0, 1.0, seed=7)
    assert drawn(50, 3.0, 1.0, seed=7) != drawn(50, 3.0, 1.0, seed=8)


@pytest.mark.parametrize("burstiness", [1.0, math.inf])
def test_a_single_request_is_due_at_once(burstiness: float) -> None:
    assert drawn(1, 3.0, burstiness) == [0.0]
