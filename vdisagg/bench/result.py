"""What a bench leaves behind: the file of `--save`, and what its table and page are made of."""

from __future__ import annotations

import msgspec

from vdisagg.bench.report import Report
from vdisagg.bench.samples import Sample


class LoadPoint(msgspec.Struct, frozen=True):
    """What one engine was doing at one moment of a run, by the controller's word."""

    at_s: float
    """Seconds after the load's start."""
    instance: str
    role: str
    in_flight: int
    """Legs that the controller has sent it."""
    running: int
    waiting: int
    kv_usage: float
    """Share of its KV blocks, 0 to 1."""


class Result(msgspec.Struct, frozen=True):
    """One run: one load on one server."""

    report: Report
    samples: list[Sample]
    label: str = ""
    """What sets it apart from the other runs of the same bench: "P/D", "colocated", "4 requests/s"."""
    loads: list[LoadPoint] = []
    """Empty where the server is not ours."""
    notes: list[str] = []
    """Sentences for the user: what was left out, what could not be warmed or told."""
