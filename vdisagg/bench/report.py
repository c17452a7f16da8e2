"""What the samples of a run come to. Pure; percentiles are interpolated linearly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from vdisagg.bench.samples import Phases, Sample
from vdisagg.bench.slo import BOUNDS, Slo, missed

Length = int | str | None
"""Tokens: exactly so many, a range as it was asked for ("100-300"), or as the data set has it."""


class Settings(msgspec.Struct, frozen=True):
    """What was asked for. A rate or burstiness of None stands for infinity, as JSON has none."""

    url: str
    model: str
    requests: int
    rate_per_s: float | None
    burstiness: float | None
    max_in_flight: int | None
    input_len: Length
    output_len: Length
    seed: int
    prompt_seed: int
    warmup: int
    started: float
    """Unix time."""
    endpoint: Literal["completions", "chat"] = "completions"
    dataset: str = "random"
    """"random", "sharegpt FILE" or "mooncake FILE"."""
    prefix_len: Length = 0
    """Tokens that all prompts begin with."""
    turns: Length = 1
    """Of a conversation."""
    ramp_s: float = 0.0
    """For how long the rate rises to the asked one."""
    workers: int = 1
    """Processes that sent the load."""


class Spread(msgspec.Struct, frozen=True):
    """How values are spread, in their own unit."""

    count: int
    mean: float
    median: float
    p75: float
    p90: float
    p95: float
    p99: float
    max: float


class FailureKind(msgspec.Struct, frozen=True):
    """Requests that failed in the same way, and what the first of them said."""

    kind: str
    count: int
    example: str


class Goodput(msgspec.Struct, frozen=True):
    """How many requests kept all bounds of an SLO."""

    slo: Slo
    met: int
    share: float
    """Of all requests: one that failed has missed it."""
    per_s: float
    """Requests that met it, per second of the window."""
    missed: dict[str, int]
    """By bound, of the requests that succeeded; one that missed two counts in both."""


class PhaseSpreads(msgspec.Struct, frozen=True):
    """Where the time of the requests that succeeded went, in seconds; see `Phases`."""

    queue: Spread | None
    prefill: Spread | None
    transfer: Spread | None
    decode: Spread | None


class LinkCount(msgspec.Struct, frozen=True):
    """Requests that went over one pair; without a prefill instance, decode computed them whole."""

    prefill: str
    decode: str
    requests: int


class InstanceCount(msgspec.Struct, frozen=True):
    """Requests that an instance had a part in; one that it computed whole counts as a decode."""

    instance: str
    prefills: int
    decodes: int


class Report(msgspec.Struct, frozen=True):
    """One run. Latencies are seconds, over the requests that succeeded."""

    settings: Settings
    finished: int
    failed: int
    window_s: float
    """From the first request's sending to the end of the last one, be it a token or a failure."""
    achieved_rate_per_s: float | None
    """Requests sent per second; None where fewer than two were sent, or all at once."""
    late: Spread | None
    """How late requests were sent, against the schedule as drawn."""
    held_s: float
    """For how long the cap on requests in flight held the schedule back."""
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    """None where the front end gave no counts and chunks held several tokens."""
    e2e: Spread | None
    requests_per_s: float
    """Finished requests per second of the window."""
    output_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_hit_share: float | None
    """Share of prompt tokens answered by a prefix cache; None where the front end doesn't tell."""
    failures: list[FailureKind]
    scheduled_rate_per_s: float | None = None
    """What the schedule as drawn comes to, ramp and trace and all; None as for the achieved one."""
    goodput: Goodput | None = None
    """None without an SLO."""
    phases: PhaseSpreads | None = None
    """None where the server does not tell, as the next two are empty then."""
    links: list[LinkCount] = []
    instances: list[InstanceCount] = []


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order, at least one; `share` in 0..1."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Iterable[float | None]) -> Spread | None:
    """None when there is no value; values that are None are left out."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        median=percentile(ordered, 0.5),
        p75=percentile(ordered, 0.75),
        p90=percentile(ordered, 0.9),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def report(
    settings: Settings, samples: Sequence[Sample], *, held_s: float, slo: Slo | None = None
) -> Report:
    """Of the measured requests alone, at least one: warm-up is not among `samples`."""
    good = [sample for sample in samples if sample.failure is None]
    sent = sorted(sample.sent_s for sample in samples)
    window = max(sample.end_s for sample in samples) - sent[0]
    due = sorted(sample.due_s for sample in samples)
    paced = due[-1] > due[0] and sent[-1] > sent[0]
    phases = [sample.phases for sample in samples if sample.phases]
    prompt_tokens = sum(sample.prompt_tokens for sample in good)
    cached = [s.cached_tokens for s in good if s.cached_tokens is not None]
    gaps = [sample.gaps_s for sample in good]
    return Report(
        settings=settings,
        finished=len(good),
        failed=len(samples) - len(good),
        window_s=window,
        achieved_rate_per_s=(len(sent) - 1) / (sent[-1] - sent[0]) if paced else None,
        late=spread(sample.late_s for sample in samples),
        held_s=held_s,
        ttft=spread(sample.ttft_s for sample in good),
        tpot=spread(sample.tpot_s for sample in good),
        itl=None
        if any(gap is None for gap in gaps)
        else spread(gap for several in gaps for gap in several or ()),
        e2e=spread(sample.e2e_s for sample in good),
        requests_per_s=len(good) / window if window else 0.0,
        output_tokens_per_s=sum(s.output_tokens for s in good) / window if window else 0.0,
        prompt_tokens=prompt_tokens,
        output_tokens=sum(sample.output_tokens for sample in good),
        prefix_hit_share=sum(cached) / prompt_tokens if cached and prompt_tokens else None,
        failures=failures(samples),
        scheduled_rate_per_s=(len(due) - 1) / (due[-1] - due[0]) if paced else None,
        goodput=goodput(slo, samples, window_s=window) if slo else None,
        phases=phase_spreads([sample.phases for sample in good if sample.phases]),
        links=links(phases),
        instances=instances(phases),
    )


def goodput(slo: Slo, samples: Sequence[Sample], *, window_s: float) -> Goodput:
    """Of all requests, at least one, whether they succeeded or not."""
    verdicts = [missed(slo, sample) for sample in samples if sample.failure is None]
    met = sum(not bounds for bounds in verdicts)
    counts = Counter(bound for bounds in verdicts for bound in bounds)
    asked = zip(BOUNDS, msgspec.structs.astuple(slo), strict=True)
    return Goodput(
        slo=slo,
        met=met,
        share=met / len(samples),
        per_s=met / window_s if window_s else 0.0,
        missed={name: counts[name] for name, bound in asked if bound is not None},
    )


def phase_spreads(phases: Sequence[Phases]) -> PhaseSpreads | None:
    """None where nothing was told."""
    if not phases:
        return None
    return PhaseSpreads(
        queue=spread(phase.queue_s for phase in phases),
        prefill=spread(phase.prefill_s for phase in phases),
        transfer=spread(phase.transfer_s for phase in phases),
        decode=spread(phase.decode_s for phase in phases),
    )


def links(phases: Iterable[Phases]) -> list[LinkCount]:
    """In the order of their names."""
    counts = Counter((phase.prefill, phase.decode) for phase in phases)
    return [LinkCount(*pair, count) for pair, count in sorted(counts.items())]


def instances(phases: Sequence[Phases]) -> list[InstanceCount]:
    """In the order of their names."""
    prefills = Counter(phase.prefill for phase in phases if phase.prefill)
    decodes = Counter(phase.decode for phase in phases)
    names = sorted(prefills.keys() | decodes.keys())
    return [InstanceCount(name, prefills[name], decodes[name]) for name in names]


def failures(samples: Iterable[Sample]) -> list[FailureKind]:
    """By kind, the most frequent first."""
    failed = [sample for sample in samples if sample.failure is not None]
    examples = {sample.failure: sample.detail for sample in reversed(failed)}
    counts = Counter(sample.failure for sample in failed)
    return [FailureKind(str(k), count, examples[k]) for k, count in counts.most_common()]
