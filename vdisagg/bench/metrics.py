"""The metrics by which two runs are held against each other, and the table of them with intervals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

import msgspec

from vdisagg.bench import bootstrap
from vdisagg.bench.bootstrap import Estimate, Interval, Statistic
from vdisagg.bench.result import Result
from vdisagg.bench.samples import Sample
from vdisagg.bench.slo import Slo, meets

Unit = Literal["s", "requests/s", "tokens/s", "share"]

GOODPUT = "goodput"
LEAST_BEYOND = 10
"""Requests beyond a percentile for it to have an interval: for p99 of a latency it takes 1,000."""

_SHARES = {"p50": 0.5, "p99": 0.99}
_LATENCIES = {
    "TTFT mean": ("TTFT", "mean"),
    "TTFT p50": ("TTFT", "p50"),
    "TTFT p99": ("TTFT", "p99"),
    "TPOT mean": ("TPOT", "mean"),
    "TPOT p99": ("TPOT", "p99"),
    "ITL p99": ("ITL", "p99"),
    "E2E mean": ("E2E", "mean"),
    "E2E p99": ("E2E", "p99"),
}
_UNITS: dict[str, Unit] = {
    "requests/s": "requests/s",
    "output tokens/s": "tokens/s",
    GOODPUT: "share",
}


class Row(msgspec.Struct, frozen=True):
    """One metric of two runs, a and b. Latencies are in seconds, over requests that succeeded."""

    metric: str
    unit: Unit
    a: float | None
    """None where nothing was measured, or not by this front end."""
    b: float | None
    ratio: Interval | None
    """Of a/b."""
    difference: Interval | None
    """Of a-b."""

    @property
    def more_is_better(self) -> bool:
        """Else less is: latencies."""
        return self.unit != "s"

    @property
    def times(self) -> float | None:
        """a/b; None where it can't be said."""
        return self.a / self.b if self.a is not None and self.b else None

    @property
    def better(self) -> Literal["a", "b", ""]:
        """Which one; empty: no difference is shown, as the interval includes that there is none, or
        there is no interval."""
        bounds, same = (self.ratio, 1.0) if self.ratio else (self.difference, 0.0)
        if bounds is None or bounds.low <= same <= bounds.high:
            return ""
        return "a" if (bounds.low > same) == self.more_is_better else "b"


def rows(a: Result, b: Result, *, slo: Slo | None, rng: Random) -> list[Row]:
    """All metrics, in a fixed order; goodput is there with an SLO."""
    found = bootstrap.compare(
        resampled(a, slo), resampled(b, slo), paired=same_schedule(a, b), rng=rng
    )
    return [_row(name, estimate) for name, estimate in found.items()]


def same_schedule(a: Result, b: Result) -> bool:
    """Whether both runs' requests were due at the same times: then request i of one is i's of other."""
    return [sample.due_s for sample in a.samples] == [sample.due_s for sample in b.samples]


def resampled(run: Result, slo: Slo | None) -> bootstrap.Run:
    """The run's metrics as statistics that the bootstrap can reweigh."""
    samples = run.samples
    window = run.report.window_s
    busy = sum(sample.e2e_s or 0.0 for sample in samples if sample.failure is None)
    latencies: dict[str, Sequence[Sequence[float]]] = {
        "TTFT": _values(samples, lambda s: s.ttft_s),
        "TPOT": _values(samples, lambda s: s.tpot_s),
        "ITL": _gaps(samples),
        "E2E": _values(samples, lambda s: s.e2e_s),
    }
    statistics = {
        **{name: _statistic(latencies[kind], how) for name, (kind, how) in _LATENCIES.items()},
        **_throughput(samples),
    }
    if slo:
        met = [float(meets(slo, sample)) for sample in samples]
        statistics[GOODPUT] = bootstrap.ratio_of_sums(met, [1.0] * len(samples))
    block = bootstrap.block_length(len(samples), busy / window if window else 0.0)
    unsure = frozenset(
        name
        for name, (kind, how) in _LATENCIES.items()
        if how == "p99" and bootstrap.beyond(latencies[kind], 0.99) < LEAST_BEYOND
    )
    return bootstrap.Run(len(samples), block, statistics, unsure)


def _statistic(values: Sequence[Sequence[float]], how: str) -> Statistic:
    return bootstrap.mean(values) if how == "mean" else bootstrap.percentile(values, _SHARES[how])


def _values(
    samples: Sequence[Sample], of: Callable[[Sample], float | None]
) -> list[tuple[float, ...]]:
    found = [None if sample.failure else of(sample) for sample in samples]
    return [() if value is None else (value,) for value in found]


def _gaps(samples: Sequence[Sample]) -> list[Sequence[float]]:
    """Nothing at all where some gaps are not known, as in the report."""
    gaps: list[Sequence[float]] = []
    for sample in samples:
        if sample.failure:
            gaps.append(())
        elif sample.gaps_s is None:
            return [()] * len(samples)
        else:
            gaps.append(sample.gaps_s)
    return gaps


def _throughput(samples: Sequence[Sample]) -> dict[str, Statistic]:
    """Requests in the order in which they ended or failed, each with the time since the one before.

    Those times add up to the report's window, so the rates are ratios of sums over requests. A failed
    request brings its time and nothing else.
    """
    ordered = sorted(samples, key=lambda sample: sample.end_s)
    start = min(sample.sent_s for sample in samples)
    ends = [start, *(sample.end_s for sample in ordered)]
    times = [later - earlier for earlier, later in itertools.pairwise(ends)]
    finished = [float(sample.failure is None) for sample in ordered]
    tokens = [0.0 if sample.failure else float(sample.output_tokens) for sample in ordered]
    return {
        "requests/s": bootstrap.ratio_of_sums(finished, times),
        "output tokens/s": bootstrap.ratio_of_sums(tokens, times),
    }


def _row(name: str, estimate: Estimate) -> Row:
    return Row(
        metric=name,
        unit=_UNITS.get(name, "s"),
        a=estimate.a,
        b=estimate.b,
        ratio=estimate.ratio,
        difference=estimate.difference,
    )
