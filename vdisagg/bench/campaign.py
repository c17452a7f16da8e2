"""One bench of several runs: two sides, several rates, several ratios; and what they come to together.

All runs ask the same: one seed fixes the schedule, one the prompts. So that no run finds the last one's
prompts in a prefix cache, each has a `cache_salt` of its own (a field that vLLM keys its cache with);
where only OpenAI's fields may be sent, prompts are drawn anew instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import msgspec

from vdisagg import __version__
from vdisagg.bench import run
from vdisagg.bench.client import Target
from vdisagg.bench.insight import Insight
from vdisagg.bench.options import Options
from vdisagg.bench.outcome import Outcome
from vdisagg.bench.progress import Progress
from vdisagg.bench.result import Result
from vdisagg.bench.sweep import ATTAIN, ratios, sweep
from vdisagg.bench.sweep_verdict import sweep_verdict
from vdisagg.bench.verdict import verdict
from vdisagg.cluster import modes
from vdisagg.errors import UsageError

PD: Final = "P/D"
COLOCATED: Final = "colocated"
COLOCATED_EXTRA: Final[dict[str, object]] = {"vllm_xargs": {modes.KEY: modes.COLOCATED}}
"""Has our controller give each request to one engine, whole."""

KILLED: Final = "the bench was killed before its end"
"""Why runs or a verdict are missing, where nobody could say so any more."""


@dataclass(frozen=True)
class Side:
    """A server as some of the runs see it."""

    target: Target
    label: str = ""
    extra: dict[str, object] = field(default_factory=dict)
    """Fields of each request's body that make it this side."""
    insight: Insight | None = None


class Campaign:
    """Runs one after the other. What has been measured is in `runs` from each one's end on."""

    def __init__(
        self,
        options: Options,
        *,
        clock: Callable[[], float],
        watch: Callable[[Progress], None] = lambda _: None,
        keep: Callable[[Outcome], None] = lambda _: None,
        rates: Sequence[float] = (),
        attain: float = ATTAIN,
    ) -> None:
        """`keep` gets the runs so far at the end of each. `rates`: those to try, in requests/s; none: the options' own. `attain`: the share of requests
        within the SLO that a rate needs."""
        self.runs: list[Result] = []
        self.versions = {"vdisagg": __version__}
        self._options = _with_prompts_fixed(options)
        self._clock = clock
        self._watch = watch
        self._keep = keep
        self._rates = sorted(set(rates))
        self._attain = attain
        self._by_side: dict[str, list[Result]] = {}
        self._salt = os.urandom(4).hex()

    async def measure(self, sides: Sequence[Side]) -> None:
        """Put the load on each side, at each rate. Sides take turns, so that what changes slowly on the
        machines meets both. Raises what `run.run` raises."""
        for side, options in self._planned(sides):
            result = await run.run(
                options,
                side.target,
                clock=self._clock,
                watch=self._watch,
                insight=side.insight,
            )
            self.runs.append(result)
            self._by_side.setdefault(side.label, []).append(result)
            if side.insight is not None:
                self.versions |= side.insight.versions()
            self._keep(Outcome(self.runs, versions=self.versions, cut_short=KILLED))

    def outcome(self, *, by_ratio: bool = False, cut_short: str = "") -> Outcome:
        """What the runs come to, at least one. `by_ratio`: each side was a P:D ratio. `cut_short`: why
        runs are missing, where some are."""
        slo = self._options.slo
        found = Outcome(runs=self.runs, versions=self.versions, cut_short=cut_short)
        rng = Random(self._options.seed)
        if by_ratio:
            made = ratios(self.runs, slo=slo, attain=self._attain, rng=rng)
            return msgspec.structs.replace(found, ratios=made)
        sides = self._by_side.items()
        if self._rates:
            sweeps = [sweep(r, slo=slo, attain=self._attain, label=label) for label, r in sides]
            both = sweep_verdict(*sweeps) if len(sweeps) == 2 else None
            return msgspec.structs.replace(found, sweep=sweeps, verdict=both)
        if len(self.runs) == 2:
            return msgspec.structs.replace(found, verdict=verdict(*self.runs, slo=slo, rng=rng))
        return found

    def _planned(self, sides: Sequence[Side]) -> Iterator[tuple[Side, Options]]:
        for rate in self._rates or [self._options.rate_per_s]:
            for side in sides:
                at = f"{rate:g} requests/s" if self._rates else ""
                label = ", ".join(part for part in (side.label, at) if part)
                extra = {**self._options.extra, **side.extra, **self._own_cache()}
                yield (
                    side,
                    msgspec.structs.replace(
                        self._options, label=label, rate_per_s=rate, extra=extra
                    ),
                )

    def _own_cache(self) -> dict[str, object]:
        """So that the prompts of the runs before are in no cache for this one."""
        if self._options.strict or self._options.reuse:
            return {}
        return {"cache_salt": f"{self._salt}-{len(self.runs)}"}


def _with_prompts_fixed(options: Options) -> Options:
    """The same prompts for all runs, where a salt or the user sees to caches."""
    if options.prompt_seed is not None or options.reuse or options.strict:
        return options
    return msgspec.structs.replace(options, prompt_seed=int.from_bytes(os.urandom(4)))


def parse_rates(text: str) -> list[float]:
    """`1,2,4,8` as rates in requests/s. Raises UsageError."""
    try:
        rates = [float(word) for word in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise UsageError(f"--sweep {text}: rates above 0 are expected, like 1,2,4,8")
    return rates
