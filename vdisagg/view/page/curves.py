"""Few points for many: what is drawn of a run's values. Pure; each rule that leaves points out is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from vdisagg.bench.report import percentile

T = TypeVar("T")
Point = tuple[float, float]

CDF_POINTS = 400
CDF_TAIL = 50
SCATTER_POINTS = 1000
SCATTER_SLOWEST = 50
SLICES = 30
SLICE_LEAST = 5  # values; a median of fewer is a point with another name
BINS = 60
LINE_POINTS = 300
GROUPS = 120


def cdf(values: Sequence[float]) -> list[Point]:
    """(value, percent of the values that are at most that) in ascending order.

    All of up to CDF_POINTS values; of more, CDF_POINTS at even distances and the CDF_TAIL highest.
    """
    ordered = sorted(values)
    count = len(ordered)
    places = set(range(count))
    if count > CDF_POINTS:
        places = {round(i * (count - 1) / (CDF_POINTS - 1)) for i in range(CDF_POINTS)}
        places |= set(range(count - CDF_TAIL, count))
    return [(ordered[place], 100 * (place + 1) / count) for place in sorted(places)]


def scatter(points: Sequence[Point]) -> tuple[list[Point], str]:
    """The points to draw, in order of x, and what was left out, if anything.

    All of up to SCATTER_POINTS; of more, every n-th and the SCATTER_SLOWEST with the highest y.
    """
    ordered = sorted(points)
    if len(ordered) <= SCATTER_POINTS:
        return ordered, ""
    step = math.ceil(len(ordered) / SCATTER_POINTS)
    highest = sorted(ordered, key=lambda point: point[1])[-SCATTER_SLOWEST:]
    kept = sorted({*ordered[::step], *highest})
    return kept, f"1 of {step} of {len(ordered):,} requests, and the {SCATTER_SLOWEST} slowest"


def medians(points: Sequence[Point]) -> list[Point]:
    """(middle, median) of slices of time that hold equally many points; up to SLICES of them."""
    ordered = sorted(points)
    slices = min(SLICES, len(ordered) // SLICE_LEAST)
    bounds = [round(i * len(ordered) / slices) for i in range(slices + 1)] if slices else []
    found = []
    for low, high in pairwise(bounds):
        part = ordered[low:high]
        middle = (part[0][0] + part[-1][0]) / 2
        found.append((middle, percentile(sorted(y for _, y in part), 0.5)))
    return found


def bin_count(events: int) -> int:
    """Into how many bins so many events are counted: about 5 in each, BINS at most."""
    return max(1, min(BINS, events // 5))


def per_second(instants: Sequence[float], *, span_s: float, bins: int) -> list[Point]:
    """(start, events per second) of `bins` equal parts of `span_s` seconds, above 0, and the last's end."""
    width = span_s / bins
    counts = [0] * bins
    for instant in instants:
        counts[min(bins - 1, max(0, int(instant / width)))] += 1
    return [(place * width, count / width) for place, count in enumerate([*counts, counts[-1]])]


def peaks(points: Sequence[T], height: Callable[[T], float]) -> tuple[list[T], str]:
    """Of each n that follow each other the highest, so that no peak is lost, and what was left out."""
    step = math.ceil(len(points) / LINE_POINTS)
    if step <= 1:
        return list(points), ""
    groups = [points[i : i + step] for i in range(0, len(points), step)]
    return [
        max(group, key=height) for group in groups
    ], f"Drawn are the busiest of every {step} moments."


def groups(rows: Sequence[T]) -> tuple[list[Sequence[T]], str]:
    """Rows in up to GROUPS groups of neighbours, and what was done, if a group is more than one."""
    size = math.ceil(len(rows) / GROUPS)
    if size <= 1:
        return [[row] for row in rows], ""
    parted = [rows[i : i + size] for i in range(0, len(rows), size)]
    return parted, f"Each bar is the mean of {size} requests sent one after another."


def rounded(value: float) -> float:
    """To 5 significant digits: a pixel is coarser, and the page is smaller."""
    return float(f"{value:.5g}")
