"""Figures of the load: when requests were sent against the schedule, how late, and when they failed."""

from __future__ import annotations

from collections.abc import Sequence

from vdisagg.view.page import curves
from vdisagg.view.page.figure import Figure, Json, Side, layout, lines, markers


def _paced(side: Side) -> bool:
    due = [sample.due_s for sample in side.run.samples]
    return bool(due) and max(due) > min(due)


def arrivals(sides: Sequence[Side]) -> Figure | None:
    """Requests per second: as drawn for the schedule, as sent, and those that failed."""
    data: list[Json] = []
    asked: list[Json] = []  # on top of all: where it is kept, its line is theirs
    schedules: list[list[float]] = []
    for side in sides:
        samples = side.run.samples
        due = [sample.due_s for sample in samples]
        sent = [sample.sent_s for sample in samples]
        failed = [sample.sent_s for sample in samples if sample.failure is not None]
        span_s = max([0.0, *sent, *due])
        if len(samples) < 2 or span_s <= 0:
            continue
        name = f"{side.name}, sent" if side.name else "sent"
        line = _counted(name, sent, span_s, len(samples), side.color, side.dash)
        if side is sides[0] and len(sides) == 2:
            line["line"]["width"] = 5  # mostly the other side's line is the same, and lies on it
        data.append(line)
        if failed and side.points:
            name = f"{side.name}, failed" if side.name else "failed"
            color = side.color if len(sides) > 1 else "--alarm"
            areas = _counted(name, failed, span_s, len(samples), color, "solid")
            areas["line"]["width"] = 0
            data.append(areas | {"fill": "tozeroy", "fillcolor": color})
        if side.points and _paced(side) and due not in schedules:
            schedules.append(due)
            name = "asked" if len(schedules) == 1 else f"asked, {side.name}"
            line = _counted(name, due, span_s, len(samples), "--ink", "dot")
            line["line"]["width"] = 1
            asked.append(line)
    if not data:
        return None
    return Figure(
        "arrivals",
        "Arrivals",
        data + asked,
        layout("s", "requests/s"),
        f"Counted in up to {curves.BINS} equal parts of the run. Asked is the schedule as drawn; "
        "areas are requests that failed, by when they were sent.",
    )


def _counted(
    name: str, instants: Sequence[float], span_s: float, requests: int, color: str, dash: str
) -> Json:
    bins = curves.bin_count(requests)
    trace = lines(name, curves.per_second(instants, span_s=span_s, bins=bins), color, dash=dash)
    trace["line"]["shape"] = "hv"
    trace["hovertemplate"] = "%{y:.3g}/s"
    return trace


def lateness(sides: Sequence[Side]) -> Figure | None:
    """How late each request was sent. None where there was no schedule to keep."""
    data: list[Json] = []
    for side in sides:
        if not _paced(side):
            continue
        points = [(sample.due_s, 1000 * sample.late_s) for sample in side.run.samples]
        kept, _ = curves.scatter(points)
        said_on_hover = {"hovertemplate": "due at %{x:.4g} s: %{y:.3g} ms late"}
        data.append(markers(side.name or "request", kept, side.color, **said_on_hover))
    if not data:
        return None
    return Figure(
        "late",
        "Lateness of the load generator",
        data,
        layout("due at, s", "ms late", showlegend=len(sides) > 1),
        "Where this nears the latencies above, the machine that sends is the bottleneck, not the server.",
    )
