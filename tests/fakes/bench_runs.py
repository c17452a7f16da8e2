"""Runs with known latencies, for tests of what is made of them."""

from collections.abc import Callable, Sequence

from vdisagg.bench.report import Settings, report
from vdisagg.bench.result import Result
from vdisagg.bench.samples import Sample
from vdisagg.bench.slo import Slo

SETTINGS = {
    "url": "http://h:1",
    "model": "m",
    "requests": 100,
    "rate_per_s": 2.0,
    "burstiness": 1.0,
    "max_in_flight": None,
    "input_len": 10,
    "output_len": 5,
    "seed": 0,
    "prompt_seed": 1,
    "warmup": 2,
    "started": 0.0,
}


def answered(number: int, ttft: float, gap: float, *, sent: float | None = None) -> Sample:
    """Due at 2 requests/s, five tokens with equal gaps."""
    due = number / 2
    sent = due if sent is None else sent
    first = sent + ttft
    return Sample(
        number=number,
        due_s=due,
        sent_s=sent,
        first_s=first,
        last_s=first + 4 * gap,
        prompt_tokens=10,
        output_tokens=5,
        gaps_s=[gap] * 4,
    )


def failed(number: int, kind: str = "HTTP 500") -> Sample:
    return Sample(number=number, due_s=number / 2, sent_s=number / 2, failure=kind)


def result(
    samples: Sequence[Sample], label: str = "", *, slo: Slo | None = None, held_s=0.0, **settings
) -> Result:
    asked = Settings(**SETTINGS | {"requests": len(samples)} | settings)
    return Result(report(asked, samples, held_s=held_s, slo=slo), list(samples), label)


def steady(
    label: str, ttft: Callable[[int], float], gap: Callable[[int], float], *, count=100, **more
) -> Result:
    return result([answered(i, ttft(i), gap(i)) for i in range(count)], label, **more)


def always(value: float) -> Callable[[int], float]:
    return lambda _: value
