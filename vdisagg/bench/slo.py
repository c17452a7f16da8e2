"""Bounds that every request has to keep: `--slo ttft=500ms,tpot=50ms`, and which ones a request missed."""

from __future__ import annotations

import re

import msgspec

from vdisagg.bench.samples import Sample
from vdisagg.errors import UsageError

BOUNDS = ("ttft", "tpot", "itl", "e2e")
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s)")
_ALLOWED = f"allowed are {', '.join(BOUNDS)}, each once, as in ttft=500ms,tpot=50ms,e2e=2s"


class Slo(msgspec.Struct, frozen=True):
    """Seconds that a request's latency may reach but not pass; None: no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    """Of the longest gap between two tokens of the request: a reader notices a stall, not a mean."""
    e2e_s: float | None = None

    def __str__(self) -> str:
        bounds = zip(BOUNDS, msgspec.structs.astuple(self), strict=True)
        return ",".join(f"{name}={_text(bound)}" for name, bound in bounds if bound is not None)


def parse(text: str) -> Slo:
    """What `--slo` says. Raises UsageError naming the part that is wrong and what is allowed."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in BOUNDS:
            raise UsageError(
                f"--slo {text}: {part.strip() or 'an empty part'} is no bound; {_ALLOWED}"
            )
        if name in bounds:
            raise UsageError(f"--slo {text}: {name} is there twice; {_ALLOWED}")
        found = _NUMBER.fullmatch(value)
        if not found or not float(found[1]):
            raise UsageError(
                f"--slo {text}: {name} is {value or 'empty'}; it must be a number above 0 with its "
                "unit, ms or s"
            )
        bounds[name] = float(found[1]) / (1000 if found[2] == "ms" else 1)
    return Slo(**{f"{name}_s": bound for name, bound in bounds.items()})


def missed(slo: Slo, sample: Sample) -> list[str]:
    """The bounds that a request which succeeded did not keep, in the order of BOUNDS.

    A request without a second token keeps `tpot` and `itl`. Gaps that are not known, as chunks' sizes
    were not, miss `itl`: what cannot be shown is not claimed.
    """
    gaps = sample.gaps_s
    longest = float("inf") if gaps is None else max(gaps, default=0.0)
    found = {
        "ttft": (sample.ttft_s, slo.ttft_s),
        "tpot": (sample.tpot_s, slo.tpot_s),
        "itl": (longest, slo.itl_s),
        "e2e": (sample.e2e_s, slo.e2e_s),
    }
    return [
        name
        for name, (value, bound) in found.items()
        if bound is not None and value is not None and value > bound
    ]


def meets(slo: Slo, sample: Sample) -> bool:
    """Whether the request succeeded and kept every bound."""
    return sample.failure is None and not missed(slo, sample)


def _text(seconds: float) -> str:
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"
