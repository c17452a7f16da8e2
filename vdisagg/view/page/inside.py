"""Figures of the inside of our own server: each engine's load, and where requests' time went."""

from __future__ import annotations

from collections.abc import Sequence

from vdisagg.bench.result import LoadPoint
from vdisagg.bench.samples import Phases
from vdisagg.view.page import curves
from vdisagg.view.page.figure import Figure, Json, Side, axis, layout, lines, text

ENGINES = 16  # rows of one figure
ROW = 110  # pixels, as TOP and BOTTOM
GAP = 0.28  # of a row, to the next one's name
TOP = 56  # for the legend, and the first row's name
BOTTOM = 44
PHASES = {
    "queue": "--queue",
    "prefill": "--prefill",
    "transfer": "--transfer",
    "decode": "--decode",
}


def loads(side: Side, key: str) -> Figure | None:
    """A row per engine: requests that run and that wait, and the share of KV blocks in use."""
    engines: dict[tuple[str, str], list[LoadPoint]] = {}
    for point in sorted(side.run.loads, key=lambda point: point.at_s):
        engines.setdefault((point.role, point.instance), []).append(point)
    if not engines:
        return None
    # prefill stands above decode, as a request goes
    names = sorted(engines, key=lambda engine: (engine[0] != "prefill", engine))[:ENGINES]
    drawn = layout("s", "", annotations=[])
    drawn["margin"] |= {"t": TOP, "r": 44}
    drawn["legend"] |= {"y": 1, "yref": "container", "yanchor": "top"}
    drawn["xaxis"]["anchor"] = f"y{2 * len(names) - 1}"
    data: list[Json] = []
    said = ""
    top = max(1, *(_busy(point) for name in names for point in engines[name]))
    for row, (role, instance) in enumerate(names):
        points, left_out = curves.peaks(engines[role, instance], _busy)
        said = said or left_out
        data += _engine(points, row, side.color)
        high, low = (1 - place / (len(names) - GAP) for place in (row, row + 1 - GAP))
        drawn |= _scales(row, low, high, top)
        drawn["annotations"].append(_name(f"<b>{text(instance)}</b> {text(role)}", high))
    note = "Requests on the left scale, share of KV blocks on the right."
    if said:
        note += f" {said}"
    if len(engines) > ENGINES:
        note += f" {len(engines) - ENGINES} more engines are left out."
    height = round(TOP + ROW * (len(names) - GAP) + BOTTOM)
    return Figure(key, _titled("Load per engine", side), data, drawn, note, height, wide=True)


def _busy(point: LoadPoint) -> int:
    return point.running + point.waiting


def _engine(points: Sequence[LoadPoint], row: int, color: str) -> list[Json]:
    """The row's three traces. Rows count from 0; axes from 1, two to a row."""
    left, right = f"y{2 * row + 1}", f"y{2 * row + 2}"
    running = [(point.at_s, float(point.running)) for point in points]
    waiting = [(point.at_s, float(point.waiting)) for point in points]
    usage = [(point.at_s, 100 * point.kv_usage) for point in points]
    traces = [
        lines("running", running, color, yaxis=left, fill="tozeroy"),
        lines("waiting", waiting, "--alarm", yaxis=left),
        lines("KV cache in use", usage, "--quiet", dash="dot", yaxis=right),
    ]
    return [trace | {"legendgroup": trace["name"], "showlegend": row == 0} for trace in traces]


def _scales(row: int, low: float, high: float, top: int) -> Json:
    left, right = 2 * row + 1, 2 * row + 2
    requests = axis("", domain=[low, high], range=[0, 1.08 * top], nticks=4)
    percent = axis("", overlaying=f"y{left}", side="right", range=[0, 108], showgrid=False)
    percent |= {"tickvals": [0, 50, 100], "ticktext": ["0%", "50%", "100%"]}
    return {"yaxis" if left == 1 else f"yaxis{left}": requests, f"yaxis{right}": percent}


def _name(words: str, height: float) -> Json:
    return {
        "text": words,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": height,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }


def phases(sides: Sequence[Side], key: str) -> list[Figure | None]:
    """Of each run: a stacked bar per request, or group of them, in order of sending. On one scale."""
    bars: list[list[Bar]] = []
    notes: list[str] = []
    for side in sides:
        told = sorted(
            (sample.sent_s, number, sample.phases)
            for number, sample in enumerate(side.run.samples)
            if sample.phases and sample.failure is None
        )
        grouped, said = curves.groups([(sent, phases) for sent, _, phases in told])
        bars.append([_bar(group) for group in grouped])
        notes.append(said)
    top = max((sum(heights) for each in bars for _, heights in each), default=0.0)
    return [
        _stacked(side, f"{key}-{number}", each, said, 1.05 * top) if each else None
        for number, (side, each, said) in enumerate(zip(sides, bars, notes, strict=True))
    ]


Bar = tuple[float, list[float]]
"""When the first of its requests was sent, and the milliseconds of each phase."""


def _bar(group: Sequence[tuple[float, Phases]]) -> Bar:
    sums = [sum(_seconds(phases, name) for _, phases in group) for name in PHASES]
    return group[0][0], [1000 * total / len(group) for total in sums]


def _stacked(side: Side, key: str, bars: Sequence[Bar], said: str, top: float) -> Figure:
    data: list[Json] = [
        {
            "type": "bar",
            "name": name,
            "x": list(range(1, len(bars) + 1)),
            "y": [curves.rounded(heights[place]) for _, heights in bars],
            "customdata": [curves.rounded(sent) for sent, _ in bars],
            "hovertemplate": "sent at %{customdata} s: %{y:.4g} ms",
            "marker": {"color": color, "line": {"width": 0}},
        }
        for place, (name, color) in enumerate(PHASES.items())
    ]
    what = "groups of requests" if said else "requests"
    drawn = layout(f"{what} in order of sending", "ms", barmode="stack", bargap=0.1)
    drawn["yaxis"] |= {"range": [0, top]}
    drawn["legend"]["traceorder"] = "normal"
    return Figure(key, _titled("Where the time went", side), data, drawn, said, wide=True)


def _seconds(phases: Phases, name: str) -> float:
    """0 where the request had no such phase."""
    found: float | None = getattr(phases, f"{name}_s")
    return found or 0.0


def _titled(what: str, side: Side) -> str:
    return f"{what}: {side.name}" if side.name else what
