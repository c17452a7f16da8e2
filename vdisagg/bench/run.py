"""One bench run from its options to its result: make the requests, warm up, load, report."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from random import Random

from vdisagg.bench import follow, warm, workers
from vdisagg.bench.arrivals import offsets
from vdisagg.bench.asks import Ask
from vdisagg.bench.bodies import PATHS, body
from vdisagg.bench.client import Target, connections, stream
from vdisagg.bench.datasets.lengths import Lengths
from vdisagg.bench.datasets.load import Load
from vdisagg.bench.datasets.load import asks as asks_of
from vdisagg.bench.insight import Insight
from vdisagg.bench.options import Options
from vdisagg.bench.progress import Progress
from vdisagg.bench.refusals import REFUSED, STRICT, names_ours
from vdisagg.bench.report import Length, Settings, report
from vdisagg.bench.result import Result
from vdisagg.bench.samples import Sample
from vdisagg.bench.tokens import tokenizer
from vdisagg.bench.worker import Item, Job
from vdisagg.errors import UsageError

OWN_LENGTHS = ("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "stop")
"""Fields of a body that make an answer's length another than what was asked for."""


async def run(
    options: Options,
    where: Target,
    *,
    clock: Callable[[], float],
    watch: Callable[[Progress], None] = lambda _: None,
    insight: Insight | None = None,
) -> Result:
    """Warm up, then load and measure.

    `clock` gives Unix time; `watch` gets the counts at the start; `insight` is our own cluster's, and
    gives loads and phases. Raises UsageError for impossible options, Failure when a warm-up request
    fails, or one of several processes dies.
    """
    options.check()
    prompt_seed = options.prompt_seed
    if prompt_seed is None:
        prompt_seed = options.seed if options.reuse else int.from_bytes(os.urandom(4))
    load = await _load(options, where, prompt_seed)
    due = _due(options, load)
    run_id = f"bench-{os.urandom(4).hex()}"
    notes = [*load.notes, *await _warm(options, where, load, prompt_seed, run_id, insight)]
    crew = options.workers or _workers(options, load, due)
    crew = min(crew, len(due), options.max_in_flight or len(due))
    started = clock()
    progress = Progress(len(due), asked_rate_per_s=_finite(options.rate_per_s), label=options.label)
    async with follow.following(insight) as followed:

        def on_start(at: float) -> None:
            nonlocal started
            started = clock()
            followed.start(at)
            watch(progress)

        samples, held_s = await workers.run(
            _job(options, where, load, due, run_id),
            workers=crew,
            progress=progress,
            on_start=on_start,
        )
    if insight:
        samples = await followed.finish(insight, samples)
        notes += insight.notes
    if not options.strict and any(
        sample.failure in REFUSED and names_ours(sample.detail) for sample in samples
    ):
        notes.append(f"the server refuses fields of vLLM's: {STRICT}")
    settings = _settings(options, where, load, crew, prompt_seed, started)
    return Result(
        report=report(settings, samples, held_s=held_s, slo=options.slo),
        samples=samples,
        label=options.label,
        loads=followed.loads,
        notes=notes,
    )


async def _load(options: Options, where: Target, prompt_seed: int) -> Load:
    async with tokenizer(where.url, where.model, api_key=where.api_key) as counts:
        load = await asks_of(
            options.data(),
            options.count(),
            seed=prompt_seed,
            endpoint=options.endpoint,
            tokenizer=counts,
            duration_s=options.duration_s if math.isinf(options.rate_per_s) else None,
        )
    if load.form != "trace" and options.duration_s and math.isinf(options.rate_per_s):
        raise UsageError("--duration needs --rate: a file of conversations has no times of its own")
    return load


def _due(options: Options, load: Load) -> list[float]:
    """A trace's own times, where no rate is asked for."""
    own = [ask.due_s for ask in load.asks if ask.due_s is not None]
    if math.isinf(options.rate_per_s) and len(own) == len(load.asks):
        return own
    return offsets(
        len(load.asks),
        rate_per_s=options.rate_per_s,
        burstiness=options.burstiness,
        rng=Random(options.seed),
        ramp_s=options.ramp_s,
    )


def _job(options: Options, where: Target, load: Load, due: list[float], run_id: str) -> Job:
    items = [
        Item(
            number, f"{run_id}-{number}", due_s, _body(options, where, ask), _expected(options, ask)
        )
        for number, (ask, due_s) in enumerate(zip(load.asks, due, strict=True))
    ]
    return Job(where, PATHS[options.endpoint], items, options.max_in_flight)


def _body(options: Options, where: Target, ask: Ask) -> bytes:
    return body(
        where.model,
        ask,
        endpoint=options.endpoint,
        running_usage=options.running_usage,
        strict=options.strict,
        extra=options.extra,
    )


def _expected(options: Options, ask: Ask) -> int:
    """How many tokens the answer has to have; 0: any number."""
    if options.strict or any(field in options.extra for field in OWN_LENGTHS):
        return 0
    return ask.output_len or 0


async def _warm(
    options: Options,
    where: Target,
    load: Load,
    prompt_seed: int,
    run_id: str,
    insight: Insight | None,
) -> list[str]:
    """With requests of the load's own lengths; the controller then tells only of what comes after."""
    rng = Random(f"warm-up {prompt_seed}")
    ids = options.data().ids
    async with connections(where) as session:

        async def send(number: int) -> Sample:
            ask = warm.strange(load.asks[number % len(load.asks)], ids, rng)
            return await stream(
                session,
                _body(options, where, ask),
                path=PATHS[options.endpoint],
                request_id=f"{run_id}-warm-{number}",
                expected_tokens=_expected(options, ask),
            )

        notes = await warm.warm(
            send, options.warmup, where=where.url, cluster=insight, strict=options.strict
        )
    if insight:
        await asyncio.to_thread(insight.begin)
    return notes


def _workers(options: Options, load: Load, due: list[float]) -> int:
    rate = options.rate_per_s
    if math.isinf(rate) and due[-1] > 0:  # a trace's
        rate = len(due) / due[-1]
    return workers.needed(
        rate_per_s=rate,
        requests=len(due),
        output_len=sum(ask.output_len or 0 for ask in load.asks) / len(due),
        max_in_flight=options.max_in_flight,
        cores=workers.cores(),
    )


def _settings(
    options: Options, where: Target, load: Load, crew: int, prompt_seed: int, started: float
) -> Settings:
    data = options.data()
    drawn = load.form == "random"
    shape = data.shape()
    names = {"random": "random", "conversations": "sharegpt", "trace": "mooncake"}
    return Settings(
        url=where.url,
        model=where.model,
        requests=len(load.asks),
        rate_per_s=_finite(options.rate_per_s),
        burstiness=_finite(options.burstiness),
        max_in_flight=options.max_in_flight,
        input_len=_length(shape.input_len) if drawn else None,
        output_len=_length(shape.output_len) if drawn or data.output_len else None,
        seed=options.seed,
        prompt_seed=prompt_seed,
        warmup=options.warmup,
        started=started,
        endpoint=options.endpoint,
        dataset=" ".join([names[load.form], *([str(data.path)] if data.path else [])]),
        prefix_len=data.prefix_len if drawn else None,
        turns=data.turns if drawn else None,
        ramp_s=options.ramp_s,
        workers=crew,
    )


def _length(lengths: Lengths) -> Length:
    return lengths.least if lengths.least == lengths.most else f"{lengths.least}-{lengths.most}"


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else number
