"""`bench`: a load, a verdict, and what came of it. Imports stand in the commands: see clusters.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vdisagg.cli.base import Json, Name, bring_up, chosen, said_options, take_down
from vdisagg.cli.bench_end import Results, carry_out
from vdisagg.cli.output import say_on_stderr, tell
from vdisagg.errors import Failure, UsageError

if TYPE_CHECKING:
    from vdisagg.bench.campaign import Campaign, Side
    from vdisagg.bench.options import Options
    from vdisagg.topology.divide import Division
    from vdisagg.view.bench import BenchProgress

commands = typer.Typer()
bench_app = typer.Typer(invoke_without_command=True, subcommand_metavar="[compare A.json B.json]")
commands.add_typer(bench_app, name="bench")

LOAD = "Load"
SERVER = "Server"
QUESTION = "Question"
RESULT = "Result"


@bench_app.callback(
    epilog="Example: vdisagg bench --rate 2.6 --slo ttft=500ms,tpot=50ms --baseline --report out.html"
)
def bench(
    context: typer.Context,
    rate: Annotated[
        float, typer.Option(help="Requests per second; inf: all at once.", rich_help_panel=LOAD)
    ] = float("inf"),
    num_requests: Annotated[
        int | None,
        typer.Option(
            "--num-requests", "--num-prompts", help="How many to send (100).", rich_help_panel=LOAD
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Or for how many seconds to send, at --rate.", rich_help_panel=LOAD),
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(
            help="1: Poisson arrivals; below 1: bursts; inf: an even beat.", rich_help_panel=LOAD
        ),
    ] = 1.0,
    ramp: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="The rate rises to --rate for so long.", rich_help_panel=LOAD
        ),
    ] = 0.0,
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            help="At most so many in flight; holds the schedule back.", rich_help_panel=LOAD
        ),
    ] = None,
    input_len: Annotated[
        str,
        typer.Option(
            metavar="N|A:B", help="Tokens in each prompt, or a range.", rich_help_panel=LOAD
        ),
    ] = "1000",
    output_len: Annotated[
        str | None,
        typer.Option(metavar="N|A:B", help="Tokens in each answer (200).", rich_help_panel=LOAD),
    ] = None,
    prefix_len: Annotated[
        int,
        typer.Option(help="So many first tokens are the same in all.", rich_help_panel=LOAD),
    ] = 0,
    turns: Annotated[
        int, typer.Option(help="Turns of each conversation.", rich_help_panel=LOAD)
    ] = 1,
    dataset: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Conversations (ShareGPT) or a trace (Mooncake) instead of drawn prompts.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    block_tokens: Annotated[
        int, typer.Option(help="Tokens that a trace's hash id stands for.", rich_help_panel=LOAD)
    ] = 512,
    endpoint: Annotated[
        Literal["completions", "chat"],
        typer.Option(help="Which API is asked.", rich_help_panel=LOAD),
    ] = "completions",
    seed: Annotated[
        int, typer.Option(help="Fixes when requests are sent.", rich_help_panel=LOAD)
    ] = 0,
    prompt_seed: Annotated[
        int | None,
        typer.Option(
            help="Fixes the prompts. Default: fresh ones, found in no cache.", rich_help_panel=LOAD
        ),
    ] = None,
    reuse: Annotated[
        bool,
        typer.Option("--reuse", help="Prompts may come again.", rich_help_panel=LOAD),
    ] = False,
    lowest_id: Annotated[
        int, typer.Option(help="Drawn token ids begin here.", rich_help_panel=LOAD)
    ] = 1000,
    highest_id: Annotated[int, typer.Option(help="And end here.", rich_help_panel=LOAD)] = 30_000,
    warmup: Annotated[
        int,
        typer.Option(
            help="Requests before the measured ones; on a cluster more, one per link at least.",
            rich_help_panel=LOAD,
        ),
    ] = 2,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that send (as many as it takes).", rich_help_panel=LOAD),
    ] = None,
    name: Name = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI API instead of a cluster's; needs --model.", rich_help_panel=SERVER
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's name in requests.", rich_help_panel=SERVER)
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="The variable that holds the API key.", rich_help_panel=SERVER
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Send only fields that OpenAI has.", rich_help_panel=SERVER),
    ] = False,
    running_usage: Annotated[
        bool,
        typer.Option(
            help="Have each chunk tell its tokens' number: exact gaps, some load.",
            rich_help_panel=SERVER,
        ),
    ] = True,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="BOUNDS",
            help="What a request has to keep, like ttft=500ms,tpot=50ms.",
            rich_help_panel=QUESTION,
        ),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Does P/D pay? The same load on the same engines, each request whole on one.",
            rich_help_panel=QUESTION,
        ),
    ] = False,
    baseline_url: Annotated[
        str | None,
        typer.Option(help="Or on the server at this URL.", rich_help_panel=QUESTION),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="RATES",
            help="Which rate is the highest to meet the SLO? Like 1,2,4,8.",
            rich_help_panel=QUESTION,
        ),
    ] = None,
    attain: Annotated[
        float,
        typer.Option(
            help="The share of requests within the SLO that a rate needs.",
            rich_help_panel=QUESTION,
        ),
    ] = 0.9,
    ratios: Annotated[
        str | None,
        typer.Option(
            metavar="P:D,…",
            help="Which division of the engines is best? Like 1:3,2:2. Launches the cluster anew for "
            "each, and as it was in the end.",
            rich_help_panel=QUESTION,
        ),
    ] = None,
    max_failures: Annotated[
        str,
        typer.Option(metavar="N|%", help="So many requests may fail.", rich_help_panel=RESULT),
    ] = "0",
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all that was measured, as JSON.", rich_help_panel=RESULT
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a page with figures, as HTML.", rich_help_panel=RESULT
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a cluster under open-loop load, and say what it comes to.

    Exit code 1 when more requests failed than may. However it ends, the runs that had ended are printed
    and saved.
    """
    said = said_options(context)
    if context.invoked_subcommand is not None:
        if said:
            named = ", ".join(sorted(said))
            raise UsageError(
                f"{named} before compare would change nothing; next: say compare's own options after it"
            )
        return
    from vdisagg.bench import loop
    from vdisagg.bench.campaign import Campaign, parse_rates
    from vdisagg.bench.datasets import files
    from vdisagg.bench.datasets.lengths import parse as parse_lengths
    from vdisagg.bench.idle import refuse_idle
    from vdisagg.bench.options import Options, parse_max_failures
    from vdisagg.bench.slo import parse as parse_slo
    from vdisagg.topology.divide import parse_divisions
    from vdisagg.view.bench import BenchProgress

    options = Options(
        rate_per_s=rate,
        requests=num_requests,
        duration_s=duration,
        burstiness=burstiness,
        ramp_s=ramp,
        max_in_flight=max_concurrency,
        input_len=parse_lengths(input_len, option="--input-len"),
        output_len=parse_lengths(output_len, option="--output-len") if output_len else None,
        prefix_len=prefix_len,
        turns=turns,
        dataset=dataset,
        block_tokens=block_tokens,
        endpoint=endpoint,
        seed=seed,
        prompt_seed=prompt_seed,
        reuse=reuse,
        lowest_id=lowest_id,
        highest_id=highest_id,
        warmup=warmup,
        workers=workers,
        strict=strict,
        running_usage=running_usage,
        slo=parse_slo(slo) if slo else None,
        max_failures=parse_max_failures(max_failures),
    )
    rates = parse_rates(sweep) if sweep else []
    divisions = parse_divisions(ratios) if ratios else []
    _refuse_mixes(
        baseline=baseline or baseline_url is not None, rates=rates, divisions=divisions, url=url
    )
    if not 0 < attain <= 1:
        raise UsageError(f"--attain is {attain:g}; it must be above 0 and at most 1")
    _check_rates(options, rates)
    form = files.read(dataset)[0] if dataset is not None else None
    refuse_idle(said, form=form, rate_per_s=rate)
    results = Results(save, report, as_json)
    results.ready()
    name = None if url is not None else chosen(None, name)
    sides: list[Side] = []
    if not divisions:
        sides = _sides(name, url, model, api_key_env, baseline=baseline, baseline_url=baseline_url)
    view = BenchProgress()
    campaign = Campaign(
        options, clock=time.time, watch=view.watch, keep=results.keep, rates=rates, attain=attain
    )

    def measure() -> None:
        with view:
            if name is not None and divisions:
                _try_divisions(campaign, view, name, divisions, model, api_key_env)
            else:
                loop.run(campaign.measure(sides))

    runs = len(divisions) or len(sides) * max(1, len(set(rates)))
    outcome = carry_out(campaign, measure, results, runs=runs, by_ratio=bool(divisions))
    failed = any(options.too_many_failed(run.report) for run in outcome.runs)
    raise typer.Exit(1 if failed else 0)


@bench_app.command(epilog="Example: vdisagg bench compare before.json after.json")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="A file that --save wrote.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.")],
    as_json: Json = False,
) -> None:
    """Compare two benches: what was asked differently, and every metric with its interval."""
    import json
    from random import Random

    from vdisagg.bench.compare import compare as compared
    from vdisagg.bench.outcome import load
    from vdisagg.view.verdict import compare_text, comparison_json

    found = compared(load(a), load(b), rng=Random(0))
    tell(
        json.dumps(comparison_json(found), indent=2)
        if as_json
        else compare_text(found, str(a), str(b))
    )


def _refuse_mixes(
    *, baseline: bool, rates: list[float], divisions: list[Division], url: str | None
) -> None:
    if divisions and (baseline or rates):
        raise UsageError("--ratios goes with neither --baseline nor --sweep: ask one at a time")
    if divisions and url is not None:
        raise UsageError("--ratios launches a cluster anew: it needs --name, not --url")


def _check_rates(options: Options, rates: list[float]) -> None:
    """Before anything is measured: each run's options must be possible."""
    import msgspec

    for rate in rates or [options.rate_per_s]:
        msgspec.structs.replace(options, rate_per_s=rate).check()


def _sides(
    name: str | None,
    url: str | None,
    model: str | None,
    api_key_env: str | None,
    *,
    baseline: bool,
    baseline_url: str | None,
) -> list[Side]:
    """What is measured: one server, or two."""
    from vdisagg.bench.campaign import COLOCATED, COLOCATED_EXTRA, PD, Side
    from vdisagg.bench.targets import cluster_insight, cluster_target, given_target

    if name is not None:
        target = cluster_target(name, model, api_key_env)
    else:
        target = given_target(url or "", model, api_key_env)
    insight = None if name is None else cluster_insight(name)
    if baseline and baseline_url is not None:
        raise UsageError("say --baseline or --baseline-url, not both")
    if baseline_url is not None:
        other = given_target(baseline_url, target.model, api_key_env)
        return [Side(target, PD, insight=insight), Side(other, "baseline")]
    if not baseline:
        return [Side(target, insight=insight)]
    if name is None:
        raise UsageError(
            "--baseline needs a cluster of ours; for another server say --baseline-url"
        )
    whole = cluster_insight(name, colocated=True)
    return [
        Side(target, PD, insight=insight),
        Side(target, COLOCATED, extra=COLOCATED_EXTRA, insight=whole),
    ]


def _try_divisions(
    campaign: Campaign,
    view: BenchProgress,
    name: str,
    divisions: list[Division],
    model: str | None,
    api_key_env: str | None,
) -> None:
    """Measure each division of the cluster's engines; leave the cluster as it was."""
    from vdisagg.bench import loop
    from vdisagg.bench.campaign import Side
    from vdisagg.bench.targets import cluster_insight, cluster_target
    from vdisagg.cluster import record
    from vdisagg.launch.interrupt import Interrupt
    from vdisagg.topology.divide import divided, division_of, recorded

    present = record.read(record.state_root() / name)
    if present is None:
        raise Failure(f"cluster {name} is not up; next: `vdisagg up` it")
    before = recorded(present.plan.topology)
    file = Path(present.plan.topology_file)
    topologies = [(division, divided(before, division)) for division in divisions]
    cluster_target(name, model, api_key_env)  # a key that is not there is told before a relaunch
    now = division_of(before)
    try:
        for division, topology in topologies:
            if division != now:
                say_on_stderr(f"relaunching {name} as {division}")
                with Interrupt(say_on_stderr) as interrupt:
                    take_down(name)
                    now = division
                    interrupt.check()
                bring_up(topology, file)
            target = cluster_target(name, model, api_key_env)
            side = Side(target, str(division), insight=cluster_insight(name))
            loop.run(campaign.measure([side]))
            view.end()
    finally:
        if now != division_of(before):
            say_on_stderr(f"relaunching {name} as it was, {division_of(before)}")
            take_down(name)
            bring_up(before, file)
