"""Runs with known latencies, for tests of what is made of them."""

from collections.abc import Callable, Sequence
from typing import Any

from vdisagg.bench.report import Settings, report
from vdisagg.bench.result import Result
from vdisagg.bench.samples import Sample
from vdisagg.bench.slo import Slo

SETTINGS: dict[str, Any] = {
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


def settings(**more: Any) -> Settings:
    return Settings(**SETTINGS | more)


def answered(
    number: int, ttft: float, gap: float, *, sent: float | None = None, tokens: int = 5, **more: Any
) -> Sample:
    """Due at 2 requests/s, tokens with equal gaps."""
    due = number / 2
    sent = due if sent is None else sent
    first = sent + ttft
    values: dict[str, Any] = {
        "number": number,
        "due_s": due,
        "sent_s": sent,
        "first_s": first,
        "last_s": first + (tokens - 1) * gap,
        "prompt_tokens": 10,
        "output_tokens": tokens,
        "gaps_s": [gap] * (tokens - 1),
    }
    return Sample(**values | more)


def uneven(number: int, sent: float, **more: Any) -> Sample:
    """Sent 1 ms late; three tokens, after 0.1, 0.15 and 0.3 s."""
    values: dict[str, Any] = {"due_s": sent - 0.001, "last_s": sent + 0.3, "gaps_s": [0.05, 0.15]}
    return answered(number, 0.1, 0.1, sent=sent, tokens=3, **values | more)


def failed(number: int, kind: str = "HTTP 500", **more: Any) -> Sample:
    values: dict[str, Any] = {
        "number": number,
        "due_s": number / 2,
        "sent_s": number / 2,
        "failure": kind,
    }
    return Sample(**values | more)


def result(
    samples: Sequence[Sample],
    label: str = "",
    *,
    slo: Slo | None = None,
    held_s: float = 0.0,
    **more: Any,
) -> Result:
    asked = settings(**{"requests": len(samples)} | more)
    return Result(report(asked, samples, held_s=held_s, slo=slo), list(samples), label)


def steady(
    label: str,
    ttft: Callable[[int], float],
    gap: Callable[[int], float],
    *,
    count: int = 100,
    **more: Any,
) -> Result:
    return result([answered(i, ttft(i), gap(i)) for i in range(count)], label, **more)


def always(value: float) -> Callable[[int], float]:
    return lambda _: value
