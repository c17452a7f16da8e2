"""Figures of latency: how the requests that succeeded spread, and how that changed over the run."""

from __future__ import annotations

from collections.abc import Sequence

from vdisagg.bench.samples import Sample
from vdisagg.view.page import curves
from vdisagg.view.page.figure import (
    Figure,
    Json,
    Side,
    axis,
    layout,
    lines,
    markers,
    rule,
    spans_decades,
)

NAMES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "e2e": "End-to-end latency (E2E)",
}


def seconds(sample: Sample, metric: str) -> float | None:
    """TTFT, TPOT or E2E of a request that succeeded."""
    if sample.failure is not None:
        return None
    return {"ttft": sample.ttft_s, "tpot": sample.tpot_s, "e2e": sample.e2e_s}[metric]


def _points(side: Side, metric: str) -> list[tuple[float, float]]:
    """(sent at, milliseconds)."""
    found = ((sample.sent_s, seconds(sample, metric)) for sample in side.run.samples)
    return [(sent, 1000 * value) for sent, value in found if value is not None]


def bound_ms(sides: Sequence[Side], metric: str) -> float | None:
    """The SLO's bound, where all runs that have one have the same."""
    goodputs = [side.run.report.goodput for side in sides]
    bounds = {getattr(found.slo, f"{metric}_s") for found in goodputs if found}
    bound = bounds.pop() if len(bounds) == 1 else None
    return None if bound is None else 1000 * bound


def distribution(sides: Sequence[Side], metric: str) -> Figure | None:
    """All runs' CDFs of one metric. None where nothing was measured."""
    data: list[Json] = []
    everything: list[float] = []
    for side in sides:
        values = [y for _, y in _points(side, metric)]
        if not values:
            continue
        everything += values
        more = {"hovertemplate": "%{y:.1f}% within %{x:.4g} ms"}
        points = curves.cdf(values)
        if len(points) == 1:
            more["mode"] = "markers"
        data.append(lines(side.name, points, side.color, dash=side.dash, **more))
    if not data:
        return None
    drawn = layout("ms", "% of requests", showlegend=len(sides) > 1)
    drawn["yaxis"] |= {"range": [0, 102], "rangemode": "normal"}
    note = ""
    if spans_decades(everything):
        drawn["xaxis"] |= {
            "type": "log",
            "dtick": "D2" if max(everything) < 100 * min(everything) else 1,
        }
        note = "Logarithmic scale. "
    else:
        drawn["xaxis"] |= {"rangemode": "tozero"}
    if max(len(side.run.samples) for side in sides) > curves.CDF_POINTS:
        note += f"{curves.CDF_POINTS} points of each curve, and the {curves.CDF_TAIL} highest. "
    bound = bound_ms(sides, metric)
    if bound is not None:
        drawn["shapes"] = [rule("x", bound)]
        note += f"The vertical line is the SLO, {bound:g} ms."
    return Figure(f"cdf-{metric}", NAMES[metric], data, drawn, note.strip())


def over_time(sides: Sequence[Side], metric: str) -> Figure | None:
    """One metric by the instant of sending: single requests, and the median of neighbours."""
    data: list[Json] = []
    left_out: list[str] = []
    everything: list[float] = []
    for side in sides:
        points = _points(side, metric)
        middle = curves.medians(points)
        everything += [y for _, y in points]
        group = {"legendgroup": side.color}
        if side.points and points:
            kept, said = curves.scatter(points)
            left_out += [f"{side.name}: {said}" if side.name else said] if said else []
            said_on_hover = {"hovertemplate": "sent at %{x:.4g} s: %{y:.4g} ms"}
            data.append(markers(side.name or "request", kept, side.color, **said_on_hover, **group))
        if middle:
            more = group | {"hovertemplate": "median %{y:.4g} ms", "showlegend": not side.points}
            data.append(lines(side.name or "median", middle, side.color, dash=side.dash, **more))
    if not data:
        return None
    drawn = layout("sent at, s", "ms", showlegend=len(sides) > 1)
    if spans_decades(everything):
        drawn["yaxis"] = axis("ms", type="log")
    note = "Lines are medians of neighbours in time."
    bound = bound_ms(sides, metric)
    if bound is not None:
        drawn["shapes"] = [rule("y", bound)]
        note += f" The horizontal line is the SLO, {bound:g} ms."
    if left_out:
        note += f" Points drawn: {'; '.join(left_out)}."
    return Figure(f"time-{metric}", f"{NAMES[metric]} over the run", data, drawn, note)
