"""The page's tables: latencies, load, failures, phases, settings, versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from vdisagg.bench.metrics import Row, Unit
from vdisagg.bench.report import Report, Settings, Spread
from vdisagg.bench.verdict import Verdict
from vdisagg.view.page.figure import Side
from vdisagg.view.page.html import element, table
from vdisagg.view.points import interval
from vdisagg.view.text import ms, number
from vdisagg.view.verdict import NO_DIFFERENCE, TOO_FEW

DASH = "–"
SPREADS = ("mean", "median", "p75", "p90", "p95", "p99", "max")


def instant(unix: float) -> str:
    """In UTC, as the page is read elsewhere and later."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def asked(settings: Settings) -> str:
    """The load in a few words."""
    rate = "all at once" if settings.rate_per_s is None else f"{settings.rate_per_s:g} requests/s"
    return f"{settings.requests:,} requests at {rate}, data set {settings.dataset}"


def comparison(verdict: Verdict) -> str:
    """Every metric of the two sides, with how sure their ratio is."""
    rows = [
        (
            f"{row.metric}, ms" if row.unit == "s" else row.metric,
            _valued(row.a, row.unit),
            _valued(row.b, row.unit),
            DASH if row.times is None else f"{row.times:.2f}",
            interval(row, dash=DASH),
            _better(row, verdict),
        )
        for row in verdict.rows
    ]
    ratio = f"{verdict.a} / {verdict.b}"
    head = ("", verdict.a, verdict.b, ratio, "95 % CI", "better")
    return table(f"{verdict.a} against {verdict.b}", head, rows)


def _valued(value: float | None, unit: Unit) -> str:
    if value is None:
        return DASH
    if unit == "share":
        return _share(value)
    return ms(value) if unit == "s" else number(value)


def _better(row: Row, verdict: Verdict) -> str:
    if row.a is None or row.b is None:
        return "not measured"
    if row.difference is None:
        return TOO_FEW
    return {"a": verdict.a, "b": verdict.b, "": NO_DIFFERENCE}[row.better]


def latencies(sides: Sequence[Side]) -> str:
    """All percentiles of all runs."""
    if not any(side.run.report.finished for side in sides):
        return element("p", "No request succeeded, so there are no latencies.")
    rows = []
    for name in ("ttft", "tpot", "itl", "e2e"):
        for side in sides:
            found: Spread | None = getattr(side.run.report, name)
            rows.append((_of(name.upper(), side, sides), *_spread(found)))
    return table("Latencies in milliseconds, of the requests that succeeded", ("", *SPREADS), rows)


def phases(sides: Sequence[Side]) -> str:
    """Empty where no server told."""
    rows = []
    for name in ("queue", "prefill", "transfer", "decode"):
        for side in sides:
            if side.run.report.phases:
                found: Spread | None = getattr(side.run.report.phases, name)
                rows.append((_of(name, side, sides), *_spread(found)))
    return table("Phases in milliseconds, by the controller's clock", ("", *SPREADS), rows)


def load(sides: Sequence[Side]) -> str:
    """What was asked for and what came of it, a column per run."""
    facts: dict[str, Callable[[Report], str]] = {
        "asked, requests/s": _asked,
        "sent, requests/s": lambda r: _maybe(r.achieved_rate_per_s),
        "sent late, p99, ms": lambda r: ms(r.late.p99) if r.late else DASH,
        "held back by the cap, s": lambda r: number(r.held_s),
        "finished": lambda r: f"{r.finished:,}",
        "failed": lambda r: f"{r.failed:,}",
        "window, s": lambda r: number(r.window_s),
        "finished, requests/s": lambda r: number(r.requests_per_s),
        "output tokens/s": lambda r: number(r.output_tokens_per_s),
        "prompt tokens": lambda r: f"{r.prompt_tokens:,}",
        "output tokens": lambda r: f"{r.output_tokens:,}",
        "prompt tokens out of a prefix cache": lambda r: _share(r.prefix_hit_share),
        "requests that met the SLO": lambda r: _share(r.goodput.share) if r.goodput else DASH,
        "goodput, requests/s": lambda r: number(r.goodput.per_s) if r.goodput else DASH,
    }
    rows = [(name, *(fact(side.run.report) for side in sides)) for name, fact in facts.items()]
    told = [row for row in rows if set(row[1:]) != {DASH}]
    return table("Load and throughput", ("", *_names(sides)), told)


def failures(sides: Sequence[Side]) -> str:
    """Empty where nothing failed."""
    rows = [
        (kind.kind, side.name or "this run", f"{kind.count:,}", kind.example)
        for side in sides
        for kind in side.run.report.failures
    ]
    head = ("kind", "run", "requests", "the first one said")
    return table("Failures by kind", head, rows, numbers=False)


def paths(sides: Sequence[Side]) -> str:
    """How many requests went over which pair."""
    rows = [
        (
            f"{link.prefill} → {link.decode}" if link.prefill else f"{link.decode} alone",
            side.name or "this run",
            f"{link.requests:,}",
        )
        for side in sides
        for link in side.run.report.links
    ]
    return table("Requests per pair of engines", ("pair", "run", "requests"), rows, numbers=False)


NAMES = {
    "rate_per_s": "rate, requests/s",
    "max_in_flight": "most in flight",
    "input_len": "tokens in",
    "output_len": "tokens out",
    "prefix_len": "shared prefix, tokens",
    "seed": "seed of arrivals",
    "prompt_seed": "seed of prompts",
    "warmup": "warm-up requests",
    "ramp_s": "ramp, s",
    "workers": "processes that sent",
}
NONE = {"rate_per_s": "all at once", "burstiness": "evenly spaced", "max_in_flight": "no cap"}


def settings(sides: Sequence[Side]) -> str:
    """What is the same in all runs stands once."""
    rows: list[tuple[str, ...]] = []
    for field in msgspec.structs.fields(Settings):
        values = [_setting(side.run.report.settings, field.name) for side in sides]
        name = NAMES.get(field.name, field.name.replace("_", " "))
        rows.append((name, *(values if len(set(values)) > 1 else values[:1])))
    return table("Settings", ("", *_names(sides)), rows, numbers=False)


def versions(versions: Mapping[str, str]) -> str:
    """Of what measured and what was measured."""
    return table("Versions", ("", "version"), list(versions.items()), numbers=False)


def _setting(settings: Settings, name: str) -> str:
    value = getattr(settings, name)
    if name == "started":
        return instant(value)
    if value is None:
        return NONE.get(name, DASH)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _names(sides: Sequence[Side]) -> list[str]:
    return [side.name or "this run" for side in sides]


def _of(metric: str, side: Side, sides: Sequence[Side]) -> str:
    return f"{metric}, {side.name}" if len(sides) > 1 else metric


def _asked(report: Report) -> str:
    rate = report.settings.rate_per_s
    return "all at once" if rate is None else f"{rate:g}"


def _spread(spread: Spread | None) -> list[str]:
    return [DASH if spread is None else ms(getattr(spread, name)) for name in SPREADS]


def _maybe(value: float | None) -> str:
    return DASH if value is None else number(value)


def _share(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"
