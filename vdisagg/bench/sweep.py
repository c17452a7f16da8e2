"""Several runs that differ in one thing: the highest rate that meets an SLO, the best ratio of P to D.

A run meets the SLO where the share of its requests that did is at least `attain`. A rate counts only if
all lower ones that were tried met it too; a higher one that met it again is told, as chance or a
warm-up has then spoken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec

from vdisagg.bench.metrics import rows
from vdisagg.bench.report import goodput
from vdisagg.bench.result import Result
from vdisagg.bench.slo import Slo
from vdisagg.bench.verdict import doubts, load_doubts

ATTAIN = 0.9


class Point(msgspec.Struct, frozen=True):
    """One run in a table of several. Latencies are seconds; None where nothing was measured."""

    label: str
    rate_per_s: float | None
    """As asked; None: all at once."""
    achieved_rate_per_s: float | None
    requests: int
    failed: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None
    itl_p99_s: float | None
    e2e_mean_s: float | None
    output_tokens_per_s: float
    goodput: float | None
    """Share of all requests that met the SLO; None without one."""
    good_per_s: float | None
    meets: bool | None
    """Whether that share is enough."""


class Sweep(msgspec.Struct, frozen=True):
    """One server at several rates, the lowest first."""

    label: str
    points: list[Point]
    best: Point | None
    """The highest rate that met the SLO, all lower ones having met it."""
    next: Point | None
    """The first that did not."""
    odd: list[Point]
    """Higher ones that met it again."""
    sentence: str
    slo: Slo | None = None
    attain: float = ATTAIN
    doubts: list[str] = []
    """Reasons not to trust it that lie in the loads; a request that failed has missed the SLO."""


class Ratios(msgspec.Struct, frozen=True):
    """One set of machines split in several ways, each under the same load."""

    points: list[Point]
    best: Point | None
    by: Literal["goodput", "E2E mean"]
    sentence: str
    doubts: list[str] = []
    """As of a sweep, and requests that failed."""


def point(run: Result, slo: Slo | None, attain: float = ATTAIN) -> Point:
    """The run in one line."""
    report = run.report
    good = goodput(slo, run.samples, window_s=report.window_s) if slo else None
    return Point(
        label=run.label,
        rate_per_s=report.settings.rate_per_s,
        achieved_rate_per_s=report.achieved_rate_per_s,
        requests=report.finished + report.failed,
        failed=report.failed,
        ttft_p50_s=report.ttft.median if report.ttft else None,
        ttft_p99_s=report.ttft.p99 if report.ttft else None,
        tpot_mean_s=report.tpot.mean if report.tpot else None,
        itl_p99_s=report.itl.p99 if report.itl else None,
        e2e_mean_s=report.e2e.mean if report.e2e else None,
        output_tokens_per_s=report.output_tokens_per_s,
        goodput=good.share if good else None,
        good_per_s=good.per_s if good else None,
        meets=good.share >= attain if good else None,
    )


def sweep(
    runs: Sequence[Result], *, slo: Slo | None, attain: float = ATTAIN, label: str = ""
) -> Sweep:
    """Of runs at different rates, at least one, in any order."""
    points = sorted((point(run, slo, attain) for run in runs), key=rate)
    failing = [number for number, each in enumerate(points) if each.meets is False]
    end = failing[0] if failing else len(points)
    met = points[:end] if slo else []
    best = met[-1] if met else None
    following = points[end] if failing else None
    odd = [each for each in points[end:] if each.meets]
    return Sweep(
        label=label,
        points=points,
        best=best,
        next=following,
        odd=odd,
        sentence=_sentence(label, points, best, following, odd, slo, attain),
        slo=slo,
        attain=attain,
        doubts=[found for run in runs for found in load_doubts(_name(run), run.report)],
    )


def _name(run: Result) -> str:
    rate_per_s = run.report.settings.rate_per_s
    return run.label or ("all at once" if rate_per_s is None else f"{rate_per_s:g} requests/s")


def rate(each: Point) -> float:
    """Requests per second; infinity for all at once."""
    return math.inf if each.rate_per_s is None else each.rate_per_s


def rate_text(each: Point) -> str:
    """`2.6 requests/s`."""
    return "all at once" if each.rate_per_s is None else f"{each.rate_per_s:g} requests/s"


def share_text(share: float | None) -> str:
    """`93 %`, and `89.6 %` where rounding would hide what is missing."""
    if share is None:
        return "-"
    return f"{share:.0%}".replace("%", " %") if share in (0, 1) else f"{share * 100:.1f} %"


def ratios(
    runs: Sequence[Result], *, slo: Slo | None, attain: float = ATTAIN, rng: Random | None = None
) -> Ratios:
    """Of runs that are labelled with their ratio (`1:3`), at least one.

    The best has the highest goodput. Without an SLO it has the lowest mean E2E, which every wait and
    every token is part of, among those where the fewest requests failed. With `rng` it is told which
    others are not shown to differ from it.
    """
    points = [point(run, slo, attain) for run in runs]
    by: Literal["goodput", "E2E mean"] = "goodput" if slo else "E2E mean"
    found = [doubt for run in runs for doubt in doubts(_name(run), run.report)]
    measured = [number for number, each in enumerate(points) if each.e2e_mean_s is not None]
    if not measured:
        return Ratios(points, None, by, "No ratio finished a request.", found)
    first = min(measured, key=lambda number: _rank(points[number]))
    best = points[first]
    others = [f"{each.label} {_ranked(each)}" for each in points if each is not best]
    what = f"the most requests meet {slo}" if slo else "the mean E2E is shortest"
    sentence = f"With {best.label} {what}: {_ranked(best)}"
    if others:
        sentence += f", against {', '.join(others)}"
    alike = [
        points[number].label
        for number in measured
        if rng and number != first and not _shown(runs[first], runs[number], by, slo, rng)
    ]
    if alike:
        sentence += f"; no difference is shown to {', '.join(alike)}"
    return Ratios(points, best, by, f"{sentence}.", found)


def _shown(best: Result, other: Result, by: str, slo: Slo | None, rng: Random) -> bool:
    table = {row.metric: row for row in rows(best, other, slo=slo, rng=rng)}
    return table[by].better == "a"


def _rank(each: Point) -> tuple[float, float, float]:
    return -(each.goodput or 0.0), each.failed / each.requests, each.e2e_mean_s or math.inf


def _ranked(each: Point) -> str:
    if each.goodput is not None:
        return share_text(each.goodput)
    failed = f" ({each.failed} failed)" if each.failed else ""
    return f"{each.e2e_mean_s:.2f} s{failed}" if each.e2e_mean_s is not None else "nothing finished"


def _sentence(
    label: str,
    points: Sequence[Point],
    best: Point | None,
    following: Point | None,
    odd: Sequence[Point],
    slo: Slo | None,
    attain: float,
) -> str:
    who = f"{label}: " if label else ""
    if slo is None:
        return f"{who}no SLO was given, so no rate is called the highest one."
    goal = f"{attain * 100:g} % of the requests within {slo}"
    if best is None:
        said = f"no rate that was tried has {goal}"
    else:
        said = (
            f"{rate_text(best)} is the highest rate tried with {goal} ({share_text(best.goodput)})"
        )
    if following:
        said += f"; {rate_text(following)} has {share_text(following.goodput)}"
    else:
        said += "; none that was tried was too high"
    if odd:
        again = ", ".join(f"{rate_text(each)} ({share_text(each.goodput)})" for each in odd)
        said += f"; yet {again} met it again: repeat with more requests before you trust either"
    return f"{who}{said}."
