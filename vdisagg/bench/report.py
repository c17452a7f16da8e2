"""What the samples of a run come to. Pure; percentiles are interpolated linearly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from vdisagg.bench.samples import Sample


class Settings(msgspec.Struct, frozen=True):
    """What was asked for. A rate or burstiness of None stands for infinity, as JSON has none."""

    url: str
    model: str
    requests: int
    rate_per_s: float | None
    burstiness: float | None
    max_in_flight: int | None
    input_len: int
    output_len: int
    seed: int
    prompt_seed: int
    warmup: int
    started: float
    """Unix time."""


class Spread(msgspec.Struct, frozen=True):
    """How values are spread, in their own unit."""

    count: int
    mean: float
    median: float
    p90: float
    p99: float
    max: float


class FailureKind(msgspec.Struct, frozen=True):
    """Requests that failed in the same way, and what the first of them said."""

    kind: str
    count: int
    example: str


class Report(msgspec.Struct, frozen=True):
    """One run. Latencies are seconds, over the requests that succeeded."""

    settings: Settings
    finished: int
    failed: int
    window_s: float
    """From the first request's sending to the last token of all."""
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
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def report(settings: Settings, samples: Sequence[Sample], *, held_s: float) -> Report:
    """Of the measured requests alone, at least one: warm-up is not among `samples`."""
    good = [sample for sample in samples if sample.failure is None]
    sent = sorted(sample.sent_s for sample in samples)
    ends = [sample.last_s for sample in good if sample.last_s is not None]
    window = max(ends) - sent[0] if ends else 0.0
    paced = settings.rate_per_s is not None and sent[-1] > sent[0]
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
    )


def failures(samples: Iterable[Sample]) -> list[FailureKind]:
    """By kind, the most frequent first."""
    failed = [sample for sample in samples if sample.failure is not None]
    examples = {sample.failure: sample.detail for sample in reversed(failed)}
    counts = Counter(sample.failure for sample in failed)
    return [FailureKind(str(k), count, examples[k]) for k, count in counts.most_common()]
