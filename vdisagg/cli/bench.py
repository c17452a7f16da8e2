"""`bench`: a load, and what came of it. Imports stand in the command: see clusters.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from vdisagg.cli.base import Json, Name, chosen

commands = typer.Typer()


@commands.command(epilog="Example: vdisagg bench --rate 4 --num-requests 100 --save run.json")
def bench(
    name: Name = None,
    rate: Annotated[float, typer.Option(help="Requests per second; inf: all at once.")] = float(
        "inf"
    ),
    num_requests: Annotated[int | None, typer.Option(help="How many to send (100).")] = None,
    duration: Annotated[
        float | None, typer.Option(help="Or for how many seconds to send, at --rate.")
    ] = None,
    input_len: Annotated[int, typer.Option(help="Tokens in each prompt.")] = 1000,
    output_len: Annotated[int, typer.Option(help="Tokens in each answer.")] = 200,
    max_concurrency: Annotated[
        int | None, typer.Option(help="At most so many in flight; holds the schedule back.")
    ] = None,
    burstiness: Annotated[
        float, typer.Option(help="1: Poisson arrivals; below 1: bursts; inf: an even beat.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Fixes when requests are sent.")] = 0,
    prompt_seed: Annotated[
        int | None, typer.Option(help="Fixes the prompts. Default: fresh ones, found in no cache.")
    ] = None,
    lowest_id: Annotated[int, typer.Option(help="Prompts' token ids begin here.")] = 1000,
    highest_id: Annotated[int, typer.Option(help="And end here.")] = 30_000,
    warmup: Annotated[int, typer.Option(help="Requests before the measured ones.")] = 2,
    running_usage: Annotated[
        bool,
        typer.Option(help="Have each chunk tell its tokens' number: exact gaps, some load."),
    ] = True,
    url: Annotated[
        str | None, typer.Option(help="An OpenAI API instead of a cluster's; needs --model.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name in requests.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="The variable that holds the API key.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write report and samples as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a running cluster under open-loop load. Exit code 1 when any request failed."""
    import asyncio

    from vdisagg.bench import run
    from vdisagg.view.bench import BenchProgress, report_json, report_text

    options = run.Options(
        rate_per_s=rate,
        requests=num_requests,
        duration_s=duration,
        input_len=input_len,
        output_len=output_len,
        max_in_flight=max_concurrency,
        burstiness=burstiness,
        seed=seed,
        prompt_seed=prompt_seed,
        lowest_id=lowest_id,
        highest_id=highest_id,
        warmup=warmup,
        running_usage=running_usage,
    )
    options.check()
    target = (
        run.given_target(url, model, api_key_env)
        if url is not None
        else run.cluster_target(chosen(None, name), model, api_key_env)
    )
    with BenchProgress() as view:
        try:
            result = asyncio.run(run.run(options, target, clock=time.time, watch=view.watch))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    if save is not None:
        run.save(result, save)
    typer.echo(report_json(result.report) if as_json else report_text(result.report))
    raise typer.Exit(1 if result.report.failed else 0)
