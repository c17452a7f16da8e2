"""Whether P/D pays, in one sentence: two runs of the same load, with it and without, and what they show.

The rules, in this order:

1. Where one side finished nothing, there is no verdict.
2. With an SLO its goodput decides, the share of all requests that met it: P/D pays where the interval
   of the difference lies above 0, does not where it lies below, and else no difference is shown.
3. Without an SLO every metric has a say. P/D pays where at least one is better, with its whole interval
   on that side of 1, and none is worse so. It does not pay where it is the other way round. Where some
   are better and some are worse, the sentence names the largest change (by ratio) of either kind and
   leaves it to the reader; where there is neither, no difference is shown.
4. What makes the runs themselves doubtful is said before anything else: a request failed, there were
   fewer than 100, less than 95 % of the scheduled rate was sent, the load generator was late (its
   p99 is above 10 ms and above a tenth of the median TTFT), or the two loads were not the same.

Intervals are 95 % ones, joint over all metrics (see `bootstrap`): between two runs of the same thing a
difference should be shown once in twenty times. Simulated, it was in 4 of 100 pairs of runs of 100
requests with independent latencies, in 7 and 8 of 100 on a queue at half its capacity (100 and 300
requests), in 10 of 100 at four fifths of it, where the queue remembers longer than a block lasts. With
plain intervals, 95 % for each metric and p99 of few requests among them, it was in 37 to 61 of 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec

from vdisagg.bench.metrics import GOODPUT, Row, rows
from vdisagg.bench.report import Report, Settings
from vdisagg.bench.result import Result
from vdisagg.bench.slo import Slo

LEAST_REQUESTS = 100  # p99 of fewer is their worst
LEAST_RATE = 0.95
LATE_S = 0.01
LATE_SHARE = 0.1

NOT_THE_LOAD = ("url", "started", "prompt_seed", "warmup", "workers")
"""Settings that may differ between two runs of the same load."""

Answer = Literal["pays", "does not pay", "depends", "no difference", "not measured"]


class Verdict(msgspec.Struct, frozen=True):
    """P/D (a of the rows) against the same hardware without it (b)."""

    answer: Answer
    sentence: str
    doubts: list[str]
    """Reasons not to trust it."""
    a: str
    """Label of the run with P/D."""
    b: str
    rows: list[Row]
    slo: Slo | None = None


def verdict(pd: Result, baseline: Result, *, slo: Slo | None, rng: Random) -> Verdict:
    """By the rules above. `rng` draws the resamples."""
    a, b = pd.label or "P/D", baseline.label or "colocated"
    table = rows(pd, baseline, slo=slo, rng=rng)
    answer: Answer
    if not (pd.report.finished and baseline.report.finished):
        answer, sentence = "not measured", _nothing(a, pd.report, b, baseline.report)
    elif slo:
        answer, sentence = by_goodput(a, b, slo, next(r for r in table if r.metric == GOODPUT))
    else:
        answer, sentence = by_metrics(a, b, table)
    found = [*doubts(a, pd.report), *doubts(b, baseline.report)]
    unlike = [d for d in differences(pd, baseline) if d[0] not in NOT_THE_LOAD]
    if unlike:
        found.append(f"the loads differ: {', '.join(f'{n} {x} and {y}' for n, x, y in unlike)}")
    return Verdict(answer, with_doubts(sentence, found), found, a, b, table, slo)


def with_doubts(sentence: str, found: Sequence[str]) -> str:
    """What makes it doubtful comes first."""
    return f"Not to be trusted ({'; '.join(found)}): {sentence}" if found else sentence


def by_goodput(a: str, b: str, slo: Slo, row: Row) -> tuple[Answer, str]:
    """Rule 2."""
    bounds = row.difference
    if row.a is None or row.b is None or bounds is None:
        return "not measured", f"No verdict: goodput under {slo} is not known."
    said = (
        f"{percent(row.a)} % of the requests meet {slo} with {a}, {percent(row.b)} % {b} "
        f"({_points(row.a - row.b)} points, 95 % CI {_points(bounds.low)} to {_points(bounds.high)})."
    )
    if row.better == "a":
        return "pays", f"{a} pays here: {said}"
    if row.better == "b":
        return "does not pay", f"Don't: {said}"
    return "no difference", f"No difference shown: {said}"


def by_metrics(a: str, b: str, table: Sequence[Row]) -> tuple[Answer, str]:
    """Rule 3."""
    better = _largest_first([row for row in table if row.better == "a"])
    worse = _largest_first([row for row in table if row.better == "b"])
    if better and worse:
        return "depends", (
            f"{a} {change(better[0])}{_also('better', better)} but {change(worse[0])}"
            f"{_also('worse', worse)}: it pays only if {better[0].metric} matters more to you "
            f"than {worse[0].metric}."
        )
    if better:
        said = f"{change(better[0])}{_also('better', better)}"
        return "pays", f"{a} pays here: it {said}; nothing measured is worse."
    if worse:
        said = f"{change(worse[0])}{_also('worse', worse)}"
        return "does not pay", f"Don't: {a} {said}; nothing measured is better."
    return "no difference", (
        f"No difference shown: for every metric the 95 % CI of {a} against {b} includes 1."
    )


def doubts(label: str, report: Report) -> list[str]:
    """Rule 4, of one run."""
    failed = []
    if report.failed:
        kinds = ", ".join(failure.kind for failure in report.failures)
        asked = report.finished + report.failed
        failed.append(f"{label}: {report.failed} of {asked} requests failed ({kinds})")
    return failed + load_doubts(label, report)


def load_doubts(label: str, report: Report) -> list[str]:
    """Of those the ones about the load, whatever the server made of it."""
    found = []
    asked = report.finished + report.failed
    if asked < LEAST_REQUESTS:
        found.append(f"{label}: {asked} requests are too few, it takes {LEAST_REQUESTS}")
    scheduled, achieved = report.scheduled_rate_per_s, report.achieved_rate_per_s
    if scheduled and achieved and achieved < LEAST_RATE * scheduled:
        capped = f", held back {report.held_s:.1f} s by the cap" if report.held_s else ""
        found.append(
            f"{label}: {achieved:.3g} requests/s were sent where {scheduled:.3g} were asked{capped}"
        )
    late = report.late.p99 if report.late and not report.held_s and scheduled else 0.0
    if report.ttft and late > max(LATE_S, LATE_SHARE * report.ttft.median):
        found.append(
            f"{label}: the load generator was late, {late * 1000:.0f} ms at p99 where the median "
            f"TTFT is {report.ttft.median * 1000:.0f} ms"
        )
    return found


def differences(a: Result, b: Result) -> list[tuple[str, str, str]]:
    """Settings that are not the same: name, a's, b's."""
    ours, theirs = a.report.settings, b.report.settings
    names = (field.name for field in msgspec.structs.fields(Settings))
    values = [(name, getattr(ours, name), getattr(theirs, name)) for name in names]
    return [(name, _said(x), _said(y)) for name, x, y in values if x != y]


def change(row: Row) -> str:
    """`shortens ITL p99 by 43 % (95 % CI 31 to 52)`; from twice on `lengthens ITL p99 to 2.1× (…)`;
    where no ratio can be said, `lowers requests/s from 4.9 to 0.2`."""
    times, bounds = row.times, row.ratio
    if times is None:
        return f"changes {row.metric}"
    less, more = ("lowers", "raises") if row.more_is_better else ("shortens", "lengthens")
    verb = less if times < 1 else more
    if bounds is None:  # nothing finished in some resample
        return f"{verb} {row.metric} from {row.b:.2g} to {row.a:.2g}"
    if times >= 2:
        how = f"to {_times(times)}× (95 % CI {_times(bounds.low)} to {_times(bounds.high)})"
    else:
        sign = -1 if times < 1 else 1
        ends = sorted(sign * (bound - 1) for bound in (bounds.low, bounds.high))
        low, high = map(percent, ends)
        how = f"by {percent(abs(times - 1))} % (95 % CI {low} to {high})"
    return f"{verb} {row.metric} {how}"


def percent(share: float) -> str:
    """Without a unit: 43, and below ten 4.2."""
    return f"{share * 100:.0f}" if abs(share) >= 0.0995 else f"{share * 100:.1f}"


def _points(share: float) -> str:
    return f"{share * 100:+.1f}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def _largest_first(table: Sequence[Row]) -> list[Row]:
    return sorted(table, key=lambda row: -abs(math.log(row.times or 1.0)))


def _also(word: str, table: Sequence[Row]) -> str:
    return f" (also {word}: {', '.join(row.metric for row in table[1:])})" if table[1:] else ""


def _said(value: object) -> str:
    return "none" if value is None else str(value)


def _nothing(a: str, ours: Report, b: str, theirs: Report) -> str:
    counts = [f"{r.finished} of {r.finished + r.failed}" for r in (ours, theirs)]
    return f"No verdict: {a} finished {counts[0]} requests, {b} {counts[1]}."
