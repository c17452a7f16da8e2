"""Several runs held against each other: rates of a sweep, ratios of prefill to decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vdisagg.bench.sweep import Point, Ratios, Sweep, rate_text
from vdisagg.view.page import curves
from vdisagg.view.page.figure import Figure, Json, layout, lines, rule, text
from vdisagg.view.page.html import table
from vdisagg.view.page.tables import DASH
from vdisagg.view.points import HEADINGS, cells

COLORS = ("--first", "--second")
"""Of the two sides of a sweep, as everywhere."""


def sweep_figures(sweeps: Sequence[Sweep]) -> list[Figure]:
    """By the rate as asked: goodput where there is an SLO, then latencies. Without "all at once"."""
    found = []
    goodput = _by_rate(sweeps, "sweep-goodput", "Requests that met the SLO", "%", _share)
    if goodput:
        attains = {sweep.attain for sweep in sweeps if sweep.slo}
        goodput.layout["yaxis"]["range"] = [0, 104]
        goodput.layout["shapes"] = [rule("y", 100 * attain) for attain in attains]
        found.append(goodput)
    latencies: dict[str, tuple[str, Callable[[Point], float | None]]] = {
        "sweep-ttft": ("TTFT, p99", lambda point: point.ttft_p99_s),
        "sweep-tpot": ("TPOT, mean", lambda point: point.tpot_mean_s),
        "sweep-e2e": ("E2E, mean", lambda point: point.e2e_mean_s),
    }
    for key, (title, seconds) in latencies.items():
        figure = _by_rate(sweeps, key, title, "ms", lambda point, of=seconds: _ms(of(point)))  # type: ignore[misc]
        if figure:
            found.append(figure)
    return found


def _by_rate(
    sweeps: Sequence[Sweep], key: str, title: str, unit: str, value: Callable[[Point], float | None]
) -> Figure | None:
    data: list[Json] = []
    for sweep, color in zip(sweeps, COLORS, strict=False):
        pairs = [(point.rate_per_s, value(point)) for point in sweep.points]
        known = [(x, y) for x, y in pairs if x is not None and y is not None]
        if known:
            trace = lines(sweep.label or "rate", known, color, mode="lines+markers")
            data.append(trace | {"hovertemplate": f"%{{x:g}} requests/s: %{{y:.4g}} {unit}"})
    if not data:
        return None
    drawn = layout("asked, requests/s", unit, showlegend=len(sweeps) > 1)
    drawn["xaxis"]["rangemode"] = "tozero"
    return Figure(key, title, data, drawn)


def sweep_table(sweep: Sweep) -> str:
    """A row per rate."""
    rows = [(rate_text(point), *cells(point, dash=DASH)) for point in sweep.points]
    who = f": {sweep.label}" if sweep.label else ""
    return table(f"Rates, latencies in milliseconds{who}", ("asked", *HEADINGS), rows)


def ratios_figure(ratios: Ratios) -> Figure | None:
    """A bar per ratio, of what the best was chosen by."""
    by_goodput = ratios.by == "goodput"
    pairs = [
        (point.label, _share(point) if by_goodput else _ms(point.e2e_mean_s))
        for point in ratios.points
    ]
    known = [(label, curves.rounded(value)) for label, value in pairs if value is not None]
    if not known:
        return None
    bars: Json = {
        "type": "bar",
        "x": [text(label) for label, _ in known],
        "y": [value for _, value in known],
        "marker": {"color": "--first"},
        "width": 0.5,
        "hovertemplate": "%{x}: %{y:.4g}<extra></extra>",
    }
    title, unit = ("Requests that met the SLO", "%") if by_goodput else ("E2E, mean", "ms")
    drawn = layout("prefill : decode", unit, showlegend=False)
    drawn["xaxis"]["type"] = "category"  # else 1:3 is read as a time of day
    return Figure("ratios", title, [bars], drawn)


def ratios_table(ratios: Ratios) -> str:
    """A row per ratio."""
    rows = [(point.label, *cells(point, dash=DASH)) for point in ratios.points]
    return table("Prefill to decode, latencies in milliseconds", ("P:D", *HEADINGS), rows)


def _share(point: Point) -> float | None:
    return None if point.goodput is None else 100 * point.goodput


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
