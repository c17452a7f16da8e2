"""What all figures share: their value, axes, the names of colours. Plain dicts, as plotly.js reads them.

A colour is written as the name of a CSS variable (`--ink`): the page's script puts the colour in, so that one
figure serves light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from vdisagg.bench.outcome import Outcome
from vdisagg.bench.result import Result
from vdisagg.view.page.curves import Point, rounded

Json = dict[str, Any]

SHADES = 6
"""Colours from --shade-0 to --shade-5, for more than two runs."""
DASHES = ("solid", "dash", "dot", "dashdot")
LOG_FROM = 20  # times: where the highest is so much higher than the lowest, a linear axis shows only the tail


@dataclass(frozen=True)
class Figure:
    """One figure of the page."""

    key: str
    """Its id in the page."""
    title: str
    data: list[Json]
    layout: Json
    note: str = ""
    height: int = 300
    """Pixels."""
    wide: bool = False


@dataclass(frozen=True)
class Side:
    """A run, and how it looks in every figure."""

    run: Result
    name: str
    color: str
    dash: str = "solid"
    points: bool = True
    """Whether single requests are drawn, or there are too many runs for that."""


def sides(outcome: Outcome) -> list[Side]:
    """Two runs have two colours that differ; more are shades in order, a dash for each side of a sweep."""
    runs = outcome.runs
    if len(runs) <= 2:
        # alone, a run without a label needs no name
        names = [
            run.label or (f"run {i}" if len(runs) > 1 else "") for i, run in enumerate(runs, 1)
        ]
        looks = zip(runs, names, ("--first", "--second"), strict=False)
        return [Side(run, name, color) for run, name, color in looks]
    swept = [[point.label for point in sweep.points] for sweep in outcome.sweep]
    orders = swept or [[run.label for run in runs]]
    found = []
    for number, run in enumerate(runs):
        order = next((labels for labels in orders if run.label in labels), [])
        place, of = (order.index(run.label), len(order)) if order else (number, len(runs))
        dash = DASHES[orders.index(order) % len(DASHES)] if order else DASHES[-1]
        name = run.label or f"run {number + 1}"
        found.append(Side(run, name, _shade(place, of), dash, points=False))
    return found


def _shade(place: int, of: int) -> str:
    """As far apart as they can be; more than there are begin again."""
    if 1 < of <= SHADES:
        place = round(place * (SHADES - 1) / (of - 1))
    return f"--shade-{place % SHADES}"


def layout(x: str, y: str, **more: Any) -> Json:
    """Both axes' titles, from zero where plotly would rather not; `more` is the layout's own."""
    return {
        "font": {"family": "inherit", "size": 12, "color": "--ink"},
        "paper_bgcolor": "--page",
        "plot_bgcolor": "--page",
        "margin": {"l": 58, "r": 12, "t": 34, "b": 44},
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "--page", "bordercolor": "--rule", "font": {"color": "--ink"}},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "xanchor": "left", "yanchor": "bottom"},
        "showlegend": True,
        "xaxis": axis(x),
        "yaxis": axis(y, rangemode="tozero"),
        **more,
    }


def axis(title: str, **more: Any) -> Json:
    """In the page's colours."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"color": "--quiet"}},
        "gridcolor": "--rule",
        "zerolinecolor": "--rule",
        "linecolor": "--rule",
        "tickfont": {"color": "--quiet"},
        "automargin": True,
        **more,
    }


def lines(
    name: str, points: Sequence[Point], color: str, *, dash: str = "solid", **more: Any
) -> Json:
    """A trace; `more` is the trace's own."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": text(name),
        "x": [rounded(x) for x, _ in points],
        "y": [rounded(y) for _, y in points],
        "line": {"color": color, "width": 2, "dash": dash},
        **more,
    }


def markers(name: str, points: Sequence[Point], color: str, **more: Any) -> Json:
    """A trace of single points; `more` is the trace's own."""
    trace = lines(name, points, color, mode="markers", **more)
    del trace["line"]
    return trace | {"marker": {"color": color, "size": 4, "opacity": 0.55}}


def rule(across: str, at: float) -> Json:
    """A line at a value of the axis `across`, "x" or "y", as long as the other axis."""
    along = "y" if across == "x" else "x"
    return {
        "type": "line",
        f"{across}ref": across,
        f"{along}ref": "paper",
        f"{across}0": at,
        f"{across}1": at,
        f"{along}0": 0,
        f"{along}1": 1,
        "line": {"color": "--alarm", "width": 1, "dash": "dash"},
    }


def text(words: str) -> str:
    """For a place where plotly.js reads some HTML."""
    return escape(words, quote=False)


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis helps; `values` in any order."""
    positive = [value for value in values if value > 0]
    return len(positive) == len(values) > 0 and max(positive) > LOG_FROM * min(positive)
