from random import Random
from typing import Any

import pytest

from vdisagg.bench.bootstrap import (
    Interval,
    Run,
    beyond,
    block_length,
    compare,
    drawn,
    mean,
    percentile,
    ratio_of_sums,
    resamples,
)


def single(values: list[float]) -> list[list[float]]:
    return [[value] for value in values]


def run(values: list[float], block: int, **more: Any) -> Run:
    return Run(len(values), block, {"mean": mean(single(values))}, **more)


def test_the_weights_say_how_often_each_request_counts() -> None:
    assert mean([[1.0, 2.0], [6.0], []])([2, 1, 5]) == pytest.approx(12 / 5)
    assert ratio_of_sums([1.0, 0.0, 1.0], [2.0, 1.0, 5.0])([1, 3, 0]) == pytest.approx(0.2)
    assert mean([[1.0], []])([0, 4]) is None


@pytest.mark.parametrize(
    ("share", "found"), [(0.5, 2.0), (0.75, 3.25), (0.25, 1.0), (1.0, 4.0), (0.0, 1.0)]
)
def test_a_weighted_percentile_is_that_of_the_values_written_out(
    share: float, found: float
) -> None:
    # 1, 1, 3, 4: places 1.5, 2.25, 0.75, 3 and 0.
    values = [[3.0], [1.0], [2.0], [4.0]]
    assert percentile(values, share)([1, 2, 0, 1]) == pytest.approx(found)


def test_a_percentile_is_right_where_all_weight_is_far_from_it() -> None:
    values = single([float(value) for value in range(10_000)])
    weights = [0] * 10_000
    weights[3] = 9_999
    weights[0] = 1
    assert percentile(values, 0.99)(weights) == 3.0
    assert percentile(values, 0.99)([0] * 10_000) is None


def test_requests_beyond_a_percentile_are_counted_once_each() -> None:
    assert beyond(single([1.0] * 1000), 0.99) == 10
    assert beyond(single([1.0] * 300), 0.99) == 3
    # The highest 2 of 200 gaps are both of one request.
    gaps = [[float(gap) for gap in range(10 * i, 10 * i + 10)] for i in range(20)]
    assert beyond(gaps, 0.99) == 1


@pytest.mark.parametrize("block", [1, 3, 7, 10])
def test_a_resample_is_as_large_as_the_run_and_made_of_whole_blocks(block: int) -> None:
    rng = Random(1)
    for _ in range(50):
        weights = drawn(10, block, rng)
        assert sum(weights) == 10
        assert min(weights) >= 0


def test_one_block_as_long_as_the_run_is_the_run() -> None:
    assert drawn(10, 10, Random(1)) == [1] * 10


def test_the_first_and_the_last_request_are_drawn_as_often_as_the_others() -> None:
    rng = Random(1)
    sums = [0] * 20
    for _ in range(4000):
        sums = [a + b for a, b in zip(sums, drawn(20, 5, rng), strict=True)]
    assert min(sums) > 3700
    assert max(sums) < 4300


@pytest.mark.parametrize(
    ("requests", "in_flight", "length"),
    [(1000, 0.0, 10), (1000, 12.5, 50), (1000, 80.0, 100), (300, 0.0, 7), (9, 3.0, 1)],
)
def test_blocks_grow_with_requests_in_flight_up_to_a_tenth_of_the_run(
    requests: int, in_flight: float, length: int
) -> None:
    assert block_length(requests, in_flight) == length


def test_big_runs_are_resampled_less_often() -> None:
    assert [resamples(n) for n in (1, 300, 1000, 2000, 50_000)] == [1000, 1000, 1000, 500, 200]


def test_values_that_never_vary_have_intervals_without_width() -> None:
    found = compare(run([2.0] * 50, 5), run([1.0] * 50, 5), paired=False, rng=Random(1))
    assert (found["mean"].a, found["mean"].b) == (2.0, 1.0)
    assert found["mean"].ratio == Interval(2.0, 2.0)
    assert found["mean"].difference == Interval(1.0, 1.0)


def test_a_share_of_nothing_has_a_difference_and_no_ratio() -> None:
    found = compare(run([1.0] * 50, 5), run([0.0] * 50, 5), paired=False, rng=Random(1))
    assert found["mean"].ratio is None
    assert found["mean"].difference == Interval(1.0, 1.0)


def test_what_was_not_measured_or_is_unsure_has_no_interval() -> None:
    known = run([1.0] * 50, 5)
    unsure = run([2.0] * 50, 5, unsure=frozenset(["mean"]))
    found = compare(known, unsure, paired=False, rng=Random(1))["mean"]
    assert (found.a, found.b, found.ratio, found.difference) == (1.0, 2.0, None, None)
    nothing = Run(50, 5, {"mean": mean([[]] * 50)})
    found = compare(known, nothing, paired=False, rng=Random(1))["mean"]
    assert (found.a, found.b, found.ratio, found.difference) == (1.0, None, None, None)


def test_a_single_block_shows_nothing() -> None:
    found = compare(run([1.0, 9.0], 2), run([1.0, 9.0], 2), paired=True, rng=Random(1))
    assert found["mean"].difference is None


def test_what_slowed_both_runs_is_no_difference_where_they_are_paired() -> None:
    rng = Random(1)
    burst = [1 + 9 * rng.random() for _ in range(100)]
    a, b = run(burst, 5), run([2 * value for value in burst], 5)
    paired = compare(a, b, paired=True, rng=Random(1), rounds=200)["mean"].ratio
    apart = compare(a, b, paired=False, rng=Random(1), rounds=200)["mean"].ratio
    assert paired is not None
    assert apart is not None
    assert (paired.low, paired.high) == pytest.approx((0.5, 0.5))
    assert apart.high - apart.low > 0.05


def test_the_more_metrics_the_wider_each_interval() -> None:
    def noise(seed: int) -> list[list[float]]:
        rng = Random(seed)
        return [[rng.random()] for _ in range(100)]

    def width(metrics: int) -> float:
        a = Run(100, 5, {str(i): mean(noise(i)) for i in range(metrics)})
        b = Run(100, 5, {str(i): mean(noise(100 + i)) for i in range(metrics)})
        found = compare(a, b, paired=True, rng=Random(1), rounds=1000)["0"].difference
        assert found is not None
        return found.high - found.low

    # Normal intervals of 95 % and of 95 % over ten: 2.8/1.96 = 1.43.
    assert 1.2 < width(10) / width(1) < 1.7


def correlated(level: float, count: int, rng: Random) -> list[float]:
    """A first-order autoregression around `level`, 0.7 from one to the next."""
    value = rng.gauss(0, 1)
    found = []
    for _ in range(count):
        value = 0.7 * value + 0.51**0.5 * rng.gauss(0, 1)
        found.append(level + value)
    return found


def test_the_true_ratio_lies_within_about_as_often_as_promised() -> None:
    rng = Random(7)
    inside = 0
    for _ in range(60):
        a, b = run(correlated(10.0, 120, rng), 12), run(correlated(8.0, 120, rng), 12)
        ratio = compare(a, b, paired=False, rng=rng, rounds=100)["mean"].ratio
        assert ratio is not None
        inside += ratio.low <= 1.25 <= ratio.high
    assert inside >= 53  # of 60: 95 % are 57, and two deviations of that 3.4


def test_requests_one_by_one_look_surer_than_they_are() -> None:
    def width(block: int) -> float:
        rng = Random(7)
        a, b = run(correlated(10.0, 2000, rng), block), run(correlated(8.0, 2000, rng), block)
        found = compare(a, b, paired=False, rng=rng, rounds=150)["mean"].difference
        assert found is not None
        return found.high - found.low

    # The mean's true spread is sqrt((1 + 0.7)/(1 - 0.7)) = 2.4 times that of independent values.
    assert 2.0 < width(50) / width(1) < 2.8
