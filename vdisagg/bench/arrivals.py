"""When requests are due: an absolute schedule, fixed by the seed before the first one is sent."""

from __future__ import annotations

import itertools
import math
from random import Random


def offsets(
    count: int, *, rate_per_s: float, burstiness: float, rng: Random, ramp_s: float = 0.0
) -> list[float]:
    """Seconds after the start at which each of `count` requests is due; the first is due at 0.

    Gaps are gamma distributed with shape `burstiness`, so their coefficient of variation is
    1/sqrt(burstiness): 1 is a Poisson process, 0.25 has bursts, infinity is an even beat. They are
    scaled so that their mean is exactly 1/`rate_per_s`: what a sample of gaps happens to sum up to
    must not pass for another rate. An infinite rate means all at once.

    With `ramp_s` the rate grows from 0 to `rate_per_s` in a straight line over that time. It does
    so by a warp of the schedule without a ramp: where that one has come to the u-th second, and
    so to rate·u requests, this one has come to the t-th, where the area under the line is as
    large. Within the ramp of R seconds that area is rate·t²/(2R), so t = √(2Ru); it is over at
    u = R/2, and from there on t = u + R/2. So a ramp costs half of its own length, and the gaps
    after it are what they would be without it. They are scaled apart from those within, so that
    their mean is exactly 1/`rate_per_s` too: from request `ramping(…)` on.
    """
    if math.isinf(rate_per_s) or count < 2:
        return [0.0] * count
    if math.isinf(burstiness):
        even = [number / rate_per_s for number in range(count)]
    else:
        gaps = [rng.gammavariate(burstiness, 1.0) for _ in range(count - 1)]
        within = ramping(count, rate_per_s=rate_per_s, ramp_s=ramp_s)
        scaled = [*_scaled(gaps[:within], rate_per_s), *_scaled(gaps[within:], rate_per_s)]
        even = [0.0, *itertools.accumulate(scaled)]
    return [_warped(at, ramp_s) for at in even]


def ramping(count: int, *, rate_per_s: float, ramp_s: float) -> int:
    """How many requests come before the first that the full rate has sent; at most `count` - 1.

    The achieved rate is that of the requests from this number on: n requests, n - 1 gaps.
    """
    if math.isinf(rate_per_s) or count < 2:
        return 0
    return min(count - 1, math.ceil(rate_per_s * ramp_s / 2))


def count_within(duration_s: float, *, rate_per_s: float, ramp_s: float = 0.0) -> int:
    """How many requests fall in `duration_s`: the area under the rate until then, rounded; 1 or more.

    That is rate·(duration - ramp/2), or, where the ramp is longer, rate·duration²/(2·ramp).
    """
    climbed = min(duration_s, ramp_s)
    average = climbed / ramp_s / 2 if ramp_s else 0.0  # of the full rate, while it climbed
    return max(1, round(rate_per_s * (climbed * average + duration_s - climbed)))


def offsets_within(
    duration_s: float, *, rate_per_s: float, burstiness: float, rng: Random, ramp_s: float = 0.0
) -> list[float]:
    """The `offsets` of as many requests as fall in `duration_s`. The rate must be finite.

    All of them do: the last of n comes when n - 1 are through, and n is rounded by less than 1.
    """
    count = count_within(duration_s, rate_per_s=rate_per_s, ramp_s=ramp_s)
    return offsets(count, rate_per_s=rate_per_s, burstiness=burstiness, rng=rng, ramp_s=ramp_s)


def _scaled(gaps: list[float], rate_per_s: float) -> list[float]:
    if not gaps:
        return []
    scale = len(gaps) / rate_per_s / math.fsum(gaps)
    return [gap * scale for gap in gaps]


def _warped(at: float, ramp_s: float) -> float:
    return math.sqrt(2 * ramp_s * at) if at < ramp_s / 2 else at + ramp_s / 2
