"""Two saved benches side by side: what was asked differently, and every metric with its interval."""

from __future__ import annotations

from random import Random

import msgspec

from vdisagg.bench.metrics import Row, rows
from vdisagg.bench.outcome import Outcome
from vdisagg.bench.result import Result
from vdisagg.bench.slo import Slo
from vdisagg.bench.verdict import differences, doubts
from vdisagg.errors import UsageError

NOT_ASKED = ("started", "prompt_seed")
"""Settings that differ between any two runs."""


class Difference(msgspec.Struct, frozen=True):
    """A setting that the two do not share."""

    name: str
    a: str
    b: str


class Compared(msgspec.Struct, frozen=True):
    """A run of the first file and its like in the second."""

    label: str
    differing: list[Difference]
    """Settings first, then versions."""
    doubts: list[str]
    """Reasons not to trust the rows, of either run."""
    rows: list[Row]


class Comparison(msgspec.Struct, frozen=True):
    """Two files, a and b."""

    compared: list[Compared]
    only_a: list[str]
    """Labels of the runs that the other lacks."""
    only_b: list[str]
    cut_short_a: str = ""
    """Why a lacks runs that were asked for; empty: it lacks none."""
    cut_short_b: str = ""


def compare(a: Outcome, b: Outcome, *, rng: Random) -> Comparison:
    """Runs are matched by their labels, and where there is one of each, they are without.

    Goodput is compared where both were run with the same SLO. Raises UsageError when nothing matches.
    """
    theirs = {run.label: run for run in b.runs}
    pairs = [(run, theirs[run.label]) for run in a.runs if run.label in theirs]
    if not pairs and len(a.runs) == len(b.runs) == 1:
        pairs = [(a.runs[0], b.runs[0])]
    if not pairs:
        raise UsageError(
            f"no run is in both files: the first has {_labels(a)}, the second {_labels(b)}"
        )
    versions = _versions(a, b)
    matched_a, matched_b = ([pair[side].label for pair in pairs] for side in (0, 1))
    return Comparison(
        compared=[_compared(ours, other, versions, rng) for ours, other in pairs],
        only_a=[run.label for run in a.runs if run.label not in matched_a],
        only_b=[run.label for run in b.runs if run.label not in matched_b],
        cut_short_a=a.cut_short,
        cut_short_b=b.cut_short,
    )


def _compared(a: Result, b: Result, versions: list[Difference], rng: Random) -> Compared:
    settings = [Difference(*found) for found in differences(a, b) if found[0] not in NOT_ASKED]
    return Compared(
        label=a.label if a.label == b.label else f"{a.label or 'A'} and {b.label or 'B'}",
        differing=settings + versions,
        doubts=[*doubts("A", a.report), *doubts("B", b.report)],
        rows=rows(a, b, slo=_shared_slo(a, b), rng=rng),
    )


def _shared_slo(a: Result, b: Result) -> Slo | None:
    ours, theirs = a.report.goodput, b.report.goodput
    return ours.slo if ours and theirs and ours.slo == theirs.slo else None


def _versions(a: Outcome, b: Outcome) -> list[Difference]:
    names = sorted(a.versions.keys() | b.versions.keys())
    found = ((name, a.versions.get(name, "-"), b.versions.get(name, "-")) for name in names)
    return [Difference(*each) for each in found if each[1] != each[2]]


def _labels(outcome: Outcome) -> str:
    return ", ".join(run.label or "one without a label" for run in outcome.runs)
