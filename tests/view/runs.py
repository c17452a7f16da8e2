"""Small runs of a bench with times that can be added up by hand, for tests of what is shown of them."""

from __future__ import annotations

import msgspec

from fakes.bench_runs import answered, failed, settings
from vdisagg.bench.report import report
from vdisagg.bench.result import LoadPoint, Result
from vdisagg.bench.samples import Phases, Sample
from vdisagg.bench.slo import Slo

SETTINGS = settings(
    url="http://127.0.0.1:8000",
    model="tiny",
    requests=20,
    input_len=128,
    output_len=11,
    prompt_seed=7,
    started=1_700_000_000.0,  # 2023-11-14 22:13:20 UTC
)


def good(number: int, *, ttft_s: float, tpot_s: float, phases: bool = False) -> Sample:
    """Due every half second, sent 1 ms late, 11 tokens."""
    return answered(
        number,
        ttft_s,
        tpot_s,
        sent=0.5 * number + 0.001,
        tokens=11,
        prompt_tokens=128,
        phases=Phases("p0", "d0", 0.01, 0.03, 0.02, 10 * tpot_s) if phases else None,
    )


def bad(number: int, detail: str = "boom") -> Sample:
    """Due every half second, and answered with an error."""
    return failed(number, sent_s=0.5 * number + 0.001, detail=detail)


def result(
    label: str,
    samples: list[Sample],
    *,
    slo: Slo | None = None,
    engines: tuple[str, ...] = (),
    rate: float = 2.0,
) -> Result:
    """With a load point per second of each engine, such as "p0 prefill"."""
    loads = [
        LoadPoint(float(second), name, role, 1, second % 3, 0, 0.25)
        for second in range(10)
        for name, role in (engine.split() for engine in engines)
    ]
    asked = msgspec.structs.replace(SETTINGS, rate_per_s=rate)
    return Result(report(asked, samples, held_s=0.0, slo=slo), samples, label, loads)


def whole(
    label: str, *, ttft_s: float, tpot_s: float, slo: Slo | None = None, rate: float = 2.0
) -> Result:
    """19 requests that succeed, the last one 10 times slower, one that fails; with phases and loads."""
    samples = [good(i, ttft_s=ttft_s, tpot_s=tpot_s, phases=True) for i in range(18)]
    samples += [good(18, ttft_s=10 * ttft_s, tpot_s=tpot_s, phases=True), bad(19)]
    return result(label, samples, slo=slo, engines=("p0 prefill", "d0 decode"), rate=rate)
