"""How a whole bench is shown: the verdict first, then what each run measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdisagg.view.bench import report_text
from vdisagg.view.verdict import ratios_text, sweep_text, verdict_text

if TYPE_CHECKING:
    from vdisagg.bench.outcome import Outcome


def outcome_text(outcome: Outcome) -> str:
    """For people. Of several runs each has its label over it; of a sweep, or of ratios, only the table
    is shown (`--save` and `--report` have all)."""
    blocks = [f"warning: cut short: {outcome.cut_short}"] if outcome.cut_short else []
    if outcome.verdict:
        blocks.append(verdict_text(outcome.verdict))
    if outcome.sweep:
        blocks.append(sweep_text(outcome.sweep))
    if outcome.ratios:
        blocks.append(ratios_text(outcome.ratios))
    if outcome.sweep or outcome.ratios:
        return "\n\n".join([*blocks, *_failures(outcome)])
    for run in outcome.runs:
        heading = f"{run.label}\n" if run.label else ""
        blocks.append(heading + report_text(run.report, run.notes))
    return "\n\n".join(blocks)


def _failures(outcome: Outcome) -> list[str]:
    return [
        f"{run.label}: {kind.count} failed: {kind.kind}: {kind.example}"
        for run in outcome.runs
        for kind in run.report.failures
    ]
