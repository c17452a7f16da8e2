"""What stands in the cells of tables, the same on paper and on the page: of sweeps, ratios, comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdisagg.bench.sweep import share_text
from vdisagg.view.text import ms, number

if TYPE_CHECKING:
    from vdisagg.bench.metrics import Row
    from vdisagg.bench.sweep import Point

HEADINGS = (
    "sent/s",
    "failed",
    "TTFT p50",
    "TTFT p99",
    "TPOT mean",
    "ITL p99",
    "E2E mean",
    "tokens/s",
    "goodput",
    "goodput/s",
    "SLO",
)
"""Latencies are in milliseconds; goodput is the share of all requests that met the SLO."""


def cells(point: Point, *, dash: str) -> tuple[str, ...]:
    """What stands under HEADINGS; `dash` where nothing was measured, or asked."""
    latencies = (
        point.ttft_p50_s,
        point.ttft_p99_s,
        point.tpot_mean_s,
        point.itl_p99_s,
        point.e2e_mean_s,
    )
    sent = point.achieved_rate_per_s
    return (
        dash if sent is None else number(sent),
        f"{point.failed:,}",
        *(dash if value is None else ms(value) for value in latencies),
        number(point.output_tokens_per_s),
        dash if point.goodput is None else share_text(point.goodput),
        dash if point.good_per_s is None else number(point.good_per_s),
        {None: dash, True: "met", False: "missed"}[point.meets],
    )


def interval(row: Row, *, dash: str) -> str:
    """The 95 % CI of a row's ratio; where that can't be said, as a side was 0 somewhere, of the
    difference, with its sign and unit; `dash` without either."""
    if row.ratio:
        return f"{row.ratio.low:.2f} to {row.ratio.high:.2f}"
    if row.difference is None:
        return dash
    low, high = row.difference.low, row.difference.high
    if row.unit == "share":
        return f"{low * 100:+.1f} to {high * 100:+.1f} points"
    if row.unit == "s":
        return f"{low * 1000:+.2f} to {high * 1000:+.2f} ms"
    return f"{low:+.2f} to {high:+.2f} {row.unit}"
