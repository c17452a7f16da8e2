import itertools
import math
import statistics
from random import Random

import pytest

from vdisagg.bench.arrivals import count_within, offsets, offsets_within, ramping


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


def test_a_ramp_bends_the_even_beat_as_computed_by_hand() -> None:
    """2 requests/s, ramp over 4 s: rate t/2, so t²/4 requests after t seconds, 4 of them at its end."""
    due = offsets(7, rate_per_s=2.0, burstiness=math.inf, rng=Random(1), ramp_s=4.0)
    # n = t²/4, so t = 2·√n: 0, 2, 2.828, 3.464, 4; then one every half second.
    assert due == pytest.approx([0, 2, 2.8284271, 3.4641016, 4, 4.5, 5])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, math.inf])
def test_the_mean_gap_after_a_ramp_is_exactly_the_rates(burstiness: float) -> None:
    """20/s, ramp over 10 s: 100 requests in it, and number 100 comes at its end."""
    due = offsets(600, rate_per_s=20.0, burstiness=burstiness, rng=Random(3), ramp_s=10.0)
    assert ramping(600, rate_per_s=20.0, ramp_s=10.0) == 100
    assert due == sorted(due)
    assert due[0] == 0
    assert due[100] == pytest.approx(10.0)
    assert due[599] == pytest.approx(10.0 + 499 / 20)


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (math.inf, 0.0)])
def test_gaps_after_a_ramp_vary_as_without_one(burstiness: float, variation: float) -> None:
    due = offsets(20_100, rate_per_s=20.0, burstiness=burstiness, rng=Random(3), ramp_s=10.0)
    found = gaps(due[100:])
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(variation, abs=0.06)


def test_half_way_up_a_ramp_a_quarter_of_its_requests_are_through() -> None:
    due = offsets(10_001, rate_per_s=200.0, burstiness=1.0, rng=Random(3), ramp_s=100.0)
    assert sum(at < 50 for at in due) == pytest.approx(2500, rel=0.05)


def test_a_ramp_longer_than_the_schedule_never_comes_to_the_full_rate() -> None:
    """1/s after 100 s: t²/200 requests, so the third comes when t² is 400, in the 20th second."""
    due = offsets(3, rate_per_s=1.0, burstiness=math.inf, rng=Random(1), ramp_s=100.0)
    assert due == pytest.approx([0, 14.142136, 20])
    assert ramping(3, rate_per_s=1.0, ramp_s=100.0) == 2


def test_an_infinite_rate_has_no_ramp() -> None:
    assert offsets(3, rate_per_s=math.inf, burstiness=1, rng=Random(1), ramp_s=5) == [0, 0, 0]
    assert ramping(3, rate_per_s=math.inf, ramp_s=5) == 0


@pytest.mark.parametrize(
    ("duration", "rate", "ramp", "count"),
    [
        (60, 2.6, 0, 156),
        (10, 0.04, 0, 1),
        (60, 2.6, 20, 130),  # 2.6 · (60 - 10)
        (10, 4, 20, 10),  # half way up: 2/s, so 1/s on average
    ],
)
def test_a_duration_holds_as_many_requests_as_the_rate_gives(
    duration: float, rate: float, ramp: float, count: int
) -> None:
    assert count_within(duration, rate_per_s=rate, ramp_s=ramp) == count
    due = offsets_within(duration, rate_per_s=rate, burstiness=math.inf, rng=Random(1), ramp_s=ramp)
    assert len(due) == count
    assert due[-1] <= duration
    further = offsets(count + 1, rate_per_s=rate, burstiness=math.inf, rng=Random(1), ramp_s=ramp)
    assert further[-1] >= duration or count == 1
