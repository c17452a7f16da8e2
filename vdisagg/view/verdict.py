"""How a verdict, a sweep, ratios and a comparison of two files are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from vdisagg.view.points import HEADINGS, cells, interval
from vdisagg.view.text import columns

if TYPE_CHECKING:
    from vdisagg.bench.compare import Comparison
    from vdisagg.bench.metrics import Row
    from vdisagg.bench.outcome import Outcome
    from vdisagg.bench.sweep import Point, Ratios, Sweep
    from vdisagg.bench.verdict import Verdict

NO_DIFFERENCE = "no difference shown"
TOO_FEW = "too few requests to say"


def verdict_text(verdict: Verdict) -> str:
    """The sentence, what makes it doubtful, and all metrics."""
    lines = [verdict.sentence, *_warnings(verdict.doubts)]
    if verdict.rows:
        lines += ["", *rows_lines(verdict.rows, verdict.a, verdict.b)]
    return "\n".join(lines)


def rows_lines(rows: Sequence[Row], a: str, b: str) -> list[str]:
    """A table of both runs' values, their ratio with its interval, and which is better."""
    heading = ("", a, b, f"{a} / {b}", "95 % CI", "better")
    return columns([heading, *(_row(row, a, b) for row in rows)])


def sweep_text(sweeps: Sequence[Sweep]) -> str:
    """Each side's sentence over its table."""
    blocks = []
    for sweep in sweeps:
        rows = [
            ("inf" if each.rate_per_s is None else f"{each.rate_per_s:g}", each)
            for each in sweep.points
        ]
        lines = [sweep.sentence, *_warnings(sweep.doubts), *_points("rate", rows)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def ratios_text(ratios: Ratios) -> str:
    """The sentence over a table with a line per ratio."""
    rows = [(each.label, each) for each in ratios.points]
    return "\n".join([ratios.sentence, *_warnings(ratios.doubts), *_points("P:D", rows)])


def compare_text(comparison: Comparison, a: str, b: str) -> str:
    """What differs in the asking first, then the metrics. `a` and `b`: what the files are called."""
    lines = [f"A is {a}, B is {b}"]
    short = (("A", comparison.cut_short_a), ("B", comparison.cut_short_b))
    lines += _warnings([f"{name} was cut short: {why}" for name, why in short if why])
    for each in comparison.compared:
        lines += ["", *([each.label] if each.label else [])]
        if each.differing:
            found = [(d.name, d.a, d.b) for d in each.differing]
            lines += [*columns([("differs", "A", "B"), *found]), ""]
        lines += [*rows_lines(each.rows, "A", "B"), *_warnings(each.doubts)]
    for name, labels in (("A", comparison.only_a), ("B", comparison.only_b)):
        if labels:
            lines += ["", f"only in {name}: {', '.join(label or 'unlabelled' for label in labels)}"]
    return "\n".join(lines)


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """For programs: everything in seconds and shares; each row says which side is better."""
    found: dict[str, object] = msgspec.to_builtins(verdict)
    return found | {"rows": [_row_json(row) for row in verdict.rows]}


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """For programs."""
    found: dict[str, object] = msgspec.to_builtins(comparison)
    compared = [
        msgspec.to_builtins(each) | {"rows": [_row_json(row) for row in each.rows]}
        for each in comparison.compared
    ]
    return found | {"compared": compared}


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """For programs: reports without their samples (`--save` has those), and what was made of them."""
    return {
        "runs": [
            {"label": run.label, "report": msgspec.to_builtins(run.report)} for run in outcome.runs
        ],
        "verdict": verdict_json(outcome.verdict) if outcome.verdict else None,
        "sweep": msgspec.to_builtins(outcome.sweep),
        "ratios": msgspec.to_builtins(outcome.ratios),
        "versions": outcome.versions,
        "cut_short": outcome.cut_short or None,
    }


def _row_json(row: Row) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(row)
    return found | {"times": row.times, "better": row.better or None}


def _warnings(doubts: Sequence[str]) -> list[str]:
    return [f"warning: {doubt}" for doubt in doubts]


def _row(row: Row, a: str, b: str) -> tuple[str, ...]:
    name = f"{row.metric} ms" if row.unit == "s" else row.metric
    values = [_value(row, value) for value in (row.a, row.b)]
    if row.a is None or row.b is None:
        return (name, *values, "-", "-", "not measured")
    times = "-" if row.times is None else f"{row.times:.2f}"
    found = interval(row, dash="-")
    if row.difference is None:
        return (name, *values, times, "-", TOO_FEW)
    return (name, *values, times, found, {"a": a, "b": b, "": NO_DIFFERENCE}[row.better])


def _value(row: Row, value: float | None) -> str:
    if value is None:
        return "-"
    if row.unit == "share":
        return f"{value * 100:.1f} %"
    return f"{value * 1000:.2f}" if row.unit == "s" else f"{value:.2f}"


def _points(first: str, rows: Sequence[tuple[str, Point]]) -> list[str]:
    return columns([(first, *HEADINGS), *((name, *cells(each, dash="-")) for name, each in rows)])
