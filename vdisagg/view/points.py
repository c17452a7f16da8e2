"""The columns of a table with a row per rate of a sweep, or per ratio: the same on paper and on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdisagg.bench.sweep import share_text
from vdisagg.view.text import ms, number

if TYPE_CHECKING:
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
