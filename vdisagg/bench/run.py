"""One bench run from its options to its result: find the target, warm up, load, report."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from vdisagg.bench import load
from vdisagg.bench.arrivals import offsets
from vdisagg.bench.client import Target, completion_body, connections, stream
from vdisagg.bench.connections import Connections
from vdisagg.bench.progress import Progress
from vdisagg.bench.prompts import HIGHEST_ID, LOWEST_ID, prompts
from vdisagg.bench.report import Settings, report
from vdisagg.bench.result import Result
from vdisagg.bench.samples import Sample
from vdisagg.cluster import record
from vdisagg.errors import Failure, UsageError

REQUESTS = 100  # where neither their number nor a duration is said: p99 means something


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `vdisagg bench` can be asked for. Raises UsageError through `check`."""

    rate_per_s: float = math.inf
    requests: int | None = None
    duration_s: float | None = None
    input_len: int = 1000
    output_len: int = 200
    max_in_flight: int | None = None
    burstiness: float = 1.0
    seed: int = 0
    """Fixes when requests are sent."""
    prompt_seed: int | None = None
    """Fixes the prompts; None draws one, so that no run finds the last one's prompts cached."""
    lowest_id: int = LOWEST_ID
    highest_id: int = HIGHEST_ID
    warmup: int = 2
    running_usage: bool = True

    def check(self) -> None:
        """Raises UsageError naming the option that can't be."""
        if self.requests is not None and self.duration_s is not None:
            raise UsageError("say --num-requests or --duration, not both")
        if self.duration_s is not None and math.isinf(self.rate_per_s):
            raise UsageError("--duration needs --rate: without a rate everything is sent at once")
        least = {
            "--num-requests": (self.requests, 1),
            "--input-len": (self.input_len, 1),
            "--output-len": (self.output_len, 1),
            "--max-concurrency": (self.max_in_flight, 1),
            "--lowest-id": (self.lowest_id, 0),
            "--warmup": (self.warmup, 0),
        }
        for option, (value, bound) in least.items():
            if value is not None and value < bound:
                raise UsageError(f"{option} is {value}; it must be {bound} or more")
        positive = {
            "--rate": self.rate_per_s,
            "--burstiness": self.burstiness,
            "--duration": self.duration_s,
        }
        for option, number in positive.items():
            if number is not None and not number > 0:
                raise UsageError(f"{option} is {number:g}; it must be above 0")
        if self.highest_id < self.lowest_id:
            raise UsageError(
                f"--highest-id {self.highest_id} is below --lowest-id {self.lowest_id}"
            )

    def count(self) -> int:
        """How many requests: as asked, or as many as the rate gives in the duration."""
        if self.duration_s is not None:
            return max(1, round(self.rate_per_s * self.duration_s))
        return REQUESTS if self.requests is None else self.requests


def given_target(url: str, model: str | None, api_key_env: str | None = None) -> Target:
    """A front end that the user names. Raises UsageError where the options don't fit together."""
    if model is None:
        raise UsageError("--url needs --model, the name that requests ask for")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: it must begin with http:// or https://")
    base = url.rstrip("/").removesuffix("/v1")
    return Target(url=base, model=model, api_key=_key(api_key_env))


def cluster_target(name: str, model: str | None = None, api_key_env: str | None = None) -> Target:
    """The front end of a running cluster, by its record. Raises Failure when none is recorded."""
    found = record.read(record.state_root() / name)
    if found is None:
        raise Failure(f"cluster {name} is not up; next: `vdisagg up` it, or give --url and --model")
    front_end = found.plan.front_end
    model = model or front_end.served_model_name
    return Target(url=front_end.url, model=model, api_key=_key(api_key_env))


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise UsageError(f"--api-key-env {variable}: the variable is not set")
    return key


async def run(
    options: Options,
    where: Target,
    *,
    clock: Callable[[], float],
    watch: Callable[[Progress], None] = lambda _: None,
) -> Result:
    """Warm up, then load and measure. `clock` gives Unix time; `watch` gets the counts at the start.

    Raises UsageError for impossible options, Failure when a warm-up request fails.
    """
    options.check()
    count = options.count()
    prompt_seed = options.prompt_seed
    if prompt_seed is None:
        prompt_seed = int.from_bytes(os.urandom(4))
    bodies = [
        completion_body(
            where.model, prompt, output_len=options.output_len, running_usage=options.running_usage
        )
        for prompt in prompts(
            options.warmup + count,
            length=options.input_len,
            rng=Random(prompt_seed),
            lowest=options.lowest_id,
            highest=options.highest_id,
        )
    ]
    due = offsets(
        count,
        rate_per_s=options.rate_per_s,
        burstiness=options.burstiness,
        rng=Random(options.seed),
    )
    async with connections(where) as session:
        for body in bodies[: options.warmup]:
            await _warm(session, body, where, options.output_len)
        started = clock()
        progress = Progress(count)
        watch(progress)
        measured = bodies[options.warmup :]

        async def send(number: int, due_s: float, start: float) -> Sample:
            return await stream(
                session,
                measured[number],
                number=number,
                due=due_s,
                start=start,
                expected_tokens=options.output_len,
            )

        samples, held_s = await load.run(
            due, send, max_in_flight=options.max_in_flight, progress=progress
        )
    settings = Settings(
        url=where.url,
        model=where.model,
        requests=count,
        rate_per_s=_finite(options.rate_per_s),
        burstiness=_finite(options.burstiness),
        max_in_flight=options.max_in_flight,
        input_len=options.input_len,
        output_len=options.output_len,
        seed=options.seed,
        prompt_seed=prompt_seed,
        warmup=options.warmup,
        started=started,
    )
    return Result(report(settings, samples, held_s=held_s), samples)


async def _warm(session: Connections, body: bytes, where: Target, output_len: int) -> None:
    sample = await stream(session, body, expected_tokens=output_len)
    if sample.failure:
        raise Failure(
            f"{where.url}: the warm-up request failed: {sample.failure}: {sample.detail}; "
            "next: see that the cluster is up (`vdisagg status`) and that URL and model are right"
        )


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else number


def save(result: Result, path: Path) -> None:
    """Write the result as JSON, whole or not at all. Raises Failure when the disk says no."""
    text = msgspec.json.format(msgspec.json.encode(result))
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}", delete=False
        ) as f:
            f.write(text + b"\n")
        Path(f.name).chmod(0o644)
        Path(f.name).replace(path)
    except OSError as exc:
        raise Failure(f"{path}: can't be written: {exc.strerror}") from exc
