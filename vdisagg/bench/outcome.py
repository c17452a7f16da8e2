"""All that one `vdisagg bench` came to, as its file: `--save`, read again by `bench compare`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from vdisagg.bench.report import Settings, report
from vdisagg.bench.result import Result
from vdisagg.bench.samples import Sample
from vdisagg.bench.sweep import Ratios, Sweep
from vdisagg.bench.verdict import Verdict
from vdisagg.bench.whole import write_whole
from vdisagg.errors import UsageError


class Outcome(msgspec.Struct, frozen=True):
    """One bench: its runs, at least one, and what was made of them."""

    runs: list[Result]
    verdict: Verdict | None = None
    """With a baseline."""
    sweep: list[Sweep] = []
    """One per side."""
    ratios: Ratios | None = None
    versions: dict[str, str] = {}
    """Of what measured and what was measured, by name."""
    cut_short: str = ""
    """Why runs are missing that were asked for; empty: none is."""


class _OldReport(msgspec.Struct):
    settings: Settings
    held_s: float


class _Old(msgspec.Struct):
    """A file as it used to be: one run, its report with fewer percentiles, so it is made anew."""

    report: _OldReport
    samples: list[Sample]


class _Keys(msgspec.Struct):
    report: msgspec.Raw = msgspec.Raw()
    """Empty where there is none."""


def save(outcome: Outcome, path: Path) -> None:
    """Write it as JSON, whole or not at all. Raises Failure when the disk says no."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")


def load(path: Path) -> Outcome:
    """Read what `save` wrote. Raises UsageError where it can't be read, or is none."""
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{path}: can't be read: {exc.strerror}") from exc
    try:
        keys = msgspec.json.decode(data, type=_Keys)
        if not bytes(keys.report):
            found = msgspec.json.decode(data, type=Outcome)
        else:
            old = msgspec.json.decode(data, type=_Old)
            found = Outcome(runs=[_anew(old)] if old.samples else [])
    except msgspec.DecodeError as exc:
        raise _not_ours(path, str(exc)) from exc
    if not found.runs or not all(run.samples for run in found.runs):
        raise _not_ours(path, "it holds no run")
    return found


def _anew(old: _Old) -> Result:
    made = report(old.report.settings, old.samples, held_s=old.report.held_s)
    return Result(made, old.samples)


def _not_ours(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path}: not a file of `vdisagg bench --save` ({why}); next: name one that it wrote"
    )
