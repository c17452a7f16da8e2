"""Options that would change nothing beside the others: whoever says them is told, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Set

from vdisagg.bench.datasets.files import Form
from vdisagg.errors import UsageError


def refuse_idle(said: Set[str], *, form: Form | None, rate_per_s: float) -> None:
    """`said`: the options that the user gave, by their first names (`--rate`). `form`: the data set's;
    None: prompts are drawn. Raises UsageError naming all of the options that have no part in it."""
    at_once = math.isinf(rate_per_s) and "--sweep" not in said
    rules = [
        (
            form is not None,
            ("--input-len", "--prefix-len", "--turns"),
            "the prompts are those of --dataset",
        ),
        (form is None, ("--block-tokens",), "only the trace of a --dataset has blocks"),
        (
            form == "conversations",
            ("--block-tokens", "--lowest-id", "--highest-id"),
            "the prompts of conversations are text",
        ),
        (at_once, ("--burstiness",), "it spreads the arrivals of a --rate, and none is said"),
        ("--sweep" in said, ("--rate",), "--sweep has the rates"),
        (
            not said & {"--sweep", "--ratios"},
            ("--attain",),
            "it is for --sweep and --ratios",
        ),
        ("--slo" not in said, ("--attain",), "it is the share that is within an --slo"),
        ("--strict" in said, ("--running-usage",), "--strict sends no such field"),
        ("--url" in said, ("--name",), "--url is the server"),
    ]
    faults = []
    for idle, options, why in rules:
        found = [option for option in options if option in said]
        if idle and found:
            faults.append(f"{', '.join(found)} would change nothing: {why}")
    if faults:
        raise UsageError(f"{'; '.join(faults)}; next: leave out what has no part in it")
