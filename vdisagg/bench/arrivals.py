"""When requests are due: an absolute schedule, fixed by the seed before the first one is sent."""

from __future__ import annotations

import itertools
import math
from random import Random


def offsets(count: int, *, rate_per_s: float, burstiness: float, rng: Random) -> list[float]:
    """Seconds after the start at which each of `count` requests is due; the first is due at 0.

    Gaps are gamma distributed with shape `burstiness`, so their coefficient of variation is
    1/sqrt(burstiness): 1 is a Poisson process, 0.25 has bursts, infinity is an even beat. They are
    scaled so that their mean is exactly 1/`rate_per_s`: what a sample of gaps happens to sum up to
    must not pass for another rate. An infinite rate means all at once.
    """
    if math.isinf(rate_per_s):
        return [0.0] * count
    if math.isinf(burstiness):
        return [number / rate_per_s for number in range(count)]
    if count < 2:
        return [0.0] * count
    gaps = [rng.gammavariate(burstiness, 1.0) for _ in range(count - 1)]
    scale = (count - 1) / rate_per_s / math.fsum(gaps)
    return [0.0, *itertools.accumulate(gap * scale for gap in gaps)]
