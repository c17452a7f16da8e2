"""How sure the difference between two runs is: confidence intervals by a block bootstrap. Pure.

Requests that are near each other in time share queues and batches, so their latencies are not
independent: resampled one by one, they would give intervals that are too narrow. Blocks of requests
that follow each other are resampled instead (moving blocks: H. R. Künsch, "The jackknife and the
bootstrap for general stationary observations", Annals of Statistics 17, 1989), wrapped around the end,
so that the first and last requests are drawn as often as the others (circular blocks: D. N. Politis
and J. P. Romano, "A circular block-resampling procedure for stationary data", 1992).

Two runs that had the same schedule are resampled in pairs, the same blocks of both: a burst that
slowed both is then no difference between them.

Of many metrics one easily looks different by chance. So intervals are joint: tails are chosen, the same
share for every metric, such that 95 % of the resamples lie within *all* of the intervals (balanced
simultaneous sets: R. Beran, "Balanced simultaneous confidence sets", JASA 83, 1988).

Intervals of few blocks are too narrow, as a resample varies less than a new run would. So they are
stretched about the value, by what makes a mean's right: Student's t in the normal's place (T. Hesterberg,
"What teachers should know about the bootstrap", 2015, section 5.1, does it by the tails). No stretching
helps a percentile that few requests lie beyond, p99 of 300: no resample holds a worse request than the
worst one seen. It has no interval until ten requests lie beyond it (`beyond`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from random import Random
from statistics import NormalDist

import msgspec

from vdisagg.bench.report import percentile as plain_percentile

LEVEL = 0.95
RESAMPLES = 1000
FEWEST = 200
LEAST_BLOCKS = 10  # fewer give nearly the same few sums again and again

Statistic = Callable[[Sequence[int]], float | None]
"""Of a run, with request i counted `weights[i]` times; None where no counted request has a value."""


class Interval(msgspec.Struct, frozen=True):
    """95 % confidence, joint over all metrics of a comparison."""

    low: float
    high: float


class Estimate(msgspec.Struct, frozen=True):
    """One metric of two runs; None where it has no value."""

    a: float | None
    b: float | None
    ratio: Interval | None
    """Of a to b; None where either was 0 in some resample, and where there are too few requests."""
    difference: Interval | None
    """a less b, in the metric's own unit."""


class Run(msgspec.Struct, frozen=True):
    """A run as it is resampled."""

    requests: int
    block: int
    """Requests."""
    statistics: Mapping[str, Statistic]
    unsure: frozenset[str] = frozenset()
    """Those that have a value and no interval."""


def block_length(requests: int, in_flight: float) -> int:
    """How many requests that follow each other are kept together.

    The length has to grow with the cube root of the number of requests for the estimated variance to
    become right (Künsch, section 3; P. Hall, J. Horowitz and B.-Y. Jing, Biometrika 82, 1995), and
    must be some times as long as dependence lasts, here the requests that are in flight together:
    four times. So the larger of the two, but never so long that there are fewer than ten blocks.
    `in_flight`: the mean.
    """
    wanted: float = max(math.cbrt(requests), 4 * in_flight)
    longest: int = requests // LEAST_BLOCKS
    return max(1, min(math.ceil(wanted), longest))


def resamples(requests: int) -> int:
    """1,000; from 1,000 requests on as many fewer as keep the work the same, but at least 200."""
    return max(FEWEST, RESAMPLES * 1000 // max(requests, 1000))


def ratio_of_sums(numerators: Sequence[float], denominators: Sequence[float]) -> Statistic:
    """One of each per request: a mean, a share, or a rate where the denominators are seconds."""
    weigh = _weigher(denominators)

    def statistic(weights: Sequence[int]) -> float | None:
        total = weigh(weights)
        return float(sum(map(mul, weights, numerators)) / total) if total else None

    return statistic


def mean(values: Sequence[Sequence[float]]) -> Statistic:
    """`values`: those that each request brings, none or more."""
    return ratio_of_sums([math.fsum(several) for several in values], [len(v) for v in values])


def percentile(values: Sequence[Sequence[float]], share: float) -> Statistic:
    """As `report.percentile`, of all values together. Sorted once, then only counted."""
    top = share > 0.5
    near = 1 - share if top else share
    pairs = [(value, owner) for owner, several in enumerate(values) for value in several]
    pairs.sort(reverse=top)
    owners = [owner for _, owner in pairs]
    weigh = _weigher([len(several) for several in values])
    # Nearly always enough to reach the place from the nearer end: a percentile of tens of thousands
    # of gaps then costs a few hundred steps.
    head = owners[: math.ceil(2 * near * len(owners)) + 50]

    def statistic(weights: Sequence[int]) -> float | None:
        total = round(weigh(weights))
        if not total:
            return None
        place = (total - 1) * near
        low = math.floor(place)
        high = min(low + 1, total - 1)
        reached = list(accumulate(map(weights.__getitem__, head)))
        if reached[-1] <= high:
            reached = list(accumulate(map(weights.__getitem__, owners)))
        first = pairs[bisect_right(reached, low)][0]
        second = pairs[bisect_right(reached, high)][0]
        return first + (second - first) * (place - low)

    return statistic


def _weigher(amounts: Sequence[float]) -> Callable[[Sequence[int]], float]:
    """The sum of all amounts as weighted; mostly each is 1, and then it costs little."""
    if all(amount == 1 for amount in amounts):
        return sum
    return lambda weights: float(sum(map(mul, weights, amounts)))


def beyond(values: Sequence[Sequence[float]], share: float) -> int:
    """How many requests have values beyond the percentile, counted on its nearer side."""
    pairs = [(value, owner) for owner, several in enumerate(values) for value in several]
    pairs.sort(reverse=share > 0.5)
    return len({owner for _, owner in pairs[: round(min(share, 1 - share) * len(pairs))]})


def drawn(requests: int, block: int, rng: Random) -> list[int]:
    """How often each request is in one resample: blocks from anywhere, `requests` in all."""
    edges = [0] * (requests + 1)
    for at in range(0, requests, block):
        start = int(rng.random() * requests)
        end = start + min(block, requests - at)
        edges[start] += 1
        if end > requests:
            edges[0] += 1
            end -= requests
        edges[end] -= 1
    return list(accumulate(edges[:requests]))


def compare(
    a: Run, b: Run, *, paired: bool, rng: Random, rounds: int | None = None
) -> dict[str, Estimate]:
    """Every metric that both have, with its intervals. `paired` needs as many requests in both.

    `rounds`: resamples, by `resamples` where not said.
    """
    names = [name for name in a.statistics if name in b.statistics]
    rounds = rounds or resamples(max(a.requests, b.requests))
    block = max(a.block, b.block)
    unsure = a.unsure | b.unsure
    sure = [name for name in names if name not in unsure]
    values: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        weights_a = drawn(a.requests, block if paired else a.block, rng)
        weights_b = weights_a if paired else drawn(b.requests, b.block, rng)
        for name in sure:
            one, other = a.statistics[name](weights_a), b.statistics[name](weights_b)
            if one is not None and other is not None:
                values[name].append((one, other))
    tail = _joint_tail([_ranked(pairs) for pairs in values.values() if len(pairs) == rounds])
    ones_a, ones_b = [1] * a.requests, [1] * b.requests
    stretch = _stretch(min(a.requests // a.block, b.requests // b.block))
    return {
        name: _estimate(
            a.statistics[name](ones_a), b.statistics[name](ones_b), values[name], tail, stretch
        )
        for name in names
    }


def _ranked(pairs: Sequence[tuple[float, float]]) -> list[float]:
    positive = all(a > 0 and b > 0 for a, b in pairs)
    return [a / b if positive else a - b for a, b in pairs]


def _joint_tail(metrics: Sequence[Sequence[float]]) -> float:
    """The share of resamples beyond either end of each interval; `metrics`: a value per resample."""
    alone = (1 - LEVEL) / 2
    if not metrics:
        return alone
    rounds = len(metrics[0])
    outermost = [rounds] * rounds
    for values in metrics:
        ordered = sorted(values)
        for number, value in enumerate(values):
            # Equal values have the rank that is farthest from the end: they are not outer ones.
            below = bisect_right(ordered, value) - 1
            above = rounds - 1 - bisect_left(ordered, value)
            outermost[number] = min(outermost[number], below, above)
    return min(alone, plain_percentile(sorted(outermost), 1 - LEVEL) / (rounds - 1))


def _stretch(blocks: int) -> float:
    """Student's t over the normal's quantile, by the first term of its expansion, at 97.5 %; and the
    variance of a resample's mean is (blocks - 1)/blocks of the true one."""
    if blocks < 2:
        return math.inf
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    return math.sqrt(blocks / (blocks - 1)) * (1 + (z * z + 1) / (4 * (blocks - 1)))


def _estimate(
    a: float | None,
    b: float | None,
    pairs: Sequence[tuple[float, float]],
    tail: float,
    stretch: float,
) -> Estimate:
    if a is None or b is None or not pairs or math.isinf(stretch):
        return Estimate(a, b, None, None)
    differences = _ends([one - other for one, other in pairs], tail)
    low, high = (a - b + (end - (a - b)) * stretch for end in differences)
    ratio = None
    if a > 0 and b > 0 and all(one > 0 and other > 0 for one, other in pairs):
        # In logarithms, so that twice and half are equally far from 1.
        ends = _ends([one / other for one, other in pairs], tail)
        ratio = Interval(*(a / b * (end / (a / b)) ** stretch for end in ends))
    return Estimate(a, b, ratio, Interval(low, high))


def _ends(values: Sequence[float], tail: float) -> tuple[float, float]:
    ordered = sorted(values)
    return plain_percentile(ordered, tail), plain_percentile(ordered, 1 - tail)
