"""The commands: parse, call, exit code. Imports stand in the commands, since `status` has 0.3 s."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vdisagg import __version__
from vdisagg.errors import ControllerGone, Error, UsageError
from vdisagg.view.errors import show_error

if TYPE_CHECKING:
    from vdisagg.cluster.snapshot import DownResult
    from vdisagg.launch.addresses import Found
    from vdisagg.launch.nodes import Nodes
    from vdisagg.plan.model import Plan
    from vdisagg.topology.model import Topology

app = typer.Typer(
    name="vdisagg",
    help="Disaggregated prefill/decode serving of LLMs on plain machines, in one command.",
    epilog="Example: vdisagg up topologies/demo.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The topology, a YAML file.")]
OptionalFile = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="The topology file whose cluster is meant."),
]
Name = Annotated[
    str | None,
    typer.Option("--name", "--cluster", metavar="NAME", help="The cluster's name."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

FOLLOW_S = 0.5
"""Between two questions for news."""


def main() -> None:
    """The entry point: errors become messages and exit codes, never tracebacks."""
    try:
        app()
    except Error as error:
        show_error(error)
        sys.exit(error.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vdisagg {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Disaggregated prefill/decode serving of LLMs on plain machines, in one command."""


@app.command(epilog="Example: vdisagg up topologies/demo.yaml")
def up(
    file: File,
    preflight: Annotated[
        bool, typer.Option(help="Look at all nodes first, and refuse where one is not fit.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Start the cluster that FILE describes, and wait until it serves.

    Of a cluster that is up, what is dead or hangs is started again. Ctrl-C at any moment ends what was
    started. Exit code 0 also when nothing had to be.
    """
    from vdisagg.cluster.record import state_directory
    from vdisagg.launch.addresses import find_addresses
    from vdisagg.launch.here import require_vllm
    from vdisagg.launch.nodes import Nodes
    from vdisagg.launch.preflight.check import checked_by
    from vdisagg.launch.up import up as bring_up
    from vdisagg.topology.load import load
    from vdisagg.view.progress import progress_view
    from vdisagg.view.result import result_json, up_text

    topology = load(file)
    require_vllm(topology)
    directory = state_directory(topology.name)
    with Nodes(_planned(topology, file), directory) as first, progress_view() as view:
        plan = _planned(topology, file, find_addresses(topology, first.connection))
        nodes = first.of(plan)
        result = bring_up(
            plan,
            nodes,
            state_directory=directory,
            report=view,
            runners_of=nodes.of,
            check=checked_by(nodes) if preflight else None,
        )
    typer.echo(result_json(result) if as_json else up_text(result))


@app.command(epilog="Example: vdisagg down --name demo")
def down(
    file: OptionalFile = None,
    name: Name = None,
    find: Annotated[
        bool,
        typer.Option(
            "--find", help="Search FILE's nodes for a run whose record is lost, and end it."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """End a cluster: every process that it recorded, and nothing else. Logs stay.

    Needs no name where one cluster is recorded. Exit code 0 also when nothing runs. Where a node can't
    be reached, the others' processes end; the same command again goes on with what is left.
    """
    from vdisagg.cluster.record import recorded, state_root
    from vdisagg.cluster.snapshot import DownResult
    from vdisagg.launch.down import down as take_down
    from vdisagg.view.result import down_text, result_json

    if find:
        if file is None or name is not None:
            raise UsageError("--find needs FILE: its nodes are searched for what runs there")
        result = _find_and_end(file)
        typer.echo(result_json(result) if as_json else down_text(result))
        return
    if file is None and name is None and not recorded():
        typer.echo("null" if as_json else "no cluster is recorded, so nothing runs")
        return
    directory = state_root() / _chosen(file, name)
    result = DownResult(directory.name, ran=False, ended={}, log_files={})
    if directory.is_dir():
        with _nodes_of(directory) as nodes:
            result = take_down(nodes, state_directory=directory, say=_say_on_stderr)
    typer.echo(result_json(result) if as_json else down_text(result))


@app.command(epilog="Example: vdisagg status --name demo")
def status(file: OptionalFile = None, name: Name = None, as_json: Json = False) -> None:
    """Show a cluster's processes, links and load, and what is wrong.

    Needs no name where one cluster is recorded. Exit code 0 when the cluster is up and healthy,
    else 1.
    """
    from vdisagg.cluster.record import recorded, state_root
    from vdisagg.launch.status import status as look
    from vdisagg.view.status import status_json, status_text

    if file is None and name is None and not recorded():
        typer.echo("null" if as_json else "no cluster is recorded, so nothing runs")
        raise typer.Exit(1)
    directory = state_root() / _chosen(file, name)
    # Not closed: a connection that is still being made would hold up the answer.
    view = look(_nodes_of(directory), state_directory=directory)
    typer.echo(status_json(view) if as_json else status_text(view, now=time.time()))
    raise typer.Exit(0 if view.healthy else 1)


@app.command(epilog="Example: vdisagg check topologies/demo.yaml --commands")
def check(
    file: File,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the command lines to type by hand.")
    ] = False,
    nodes: Annotated[
        bool,
        typer.Option("--nodes", help="Look at all nodes instead, as `up` does before it starts."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check FILE and print the plan: what would run where, on which ports. Starts nothing.

    With --nodes, exit code 1 when a node is not fit for the plan.
    """
    from vdisagg.topology.load import load
    from vdisagg.view.console import show
    from vdisagg.view.plan import plan_commands, plan_json, plan_table

    topology = load(file)
    if nodes:
        _check_nodes(topology, file, as_json)
    plan = _planned(topology, file)
    if as_json:
        typer.echo(plan_json(plan))
    elif commands:
        typer.echo(plan_commands(plan))
    else:
        show(plan_table(plan))


@app.command(epilog="Example: vdisagg connect my.yaml d1")
def connect(
    file: File,
    instance: Annotated[
        str, typer.Argument(metavar="INSTANCE", help="One with `launch: manual` in FILE.")
    ],
) -> None:
    """Print the command that starts an instance by hand, to be run where it belongs.

    Of the recorded cluster where there is one, else as `up` would plan it now. Secrets are named in
    it, and taken from the variables or files of whoever runs it.
    """
    from vdisagg.cluster.record import read, state_root
    from vdisagg.launch.manual import manual_process
    from vdisagg.plan.commands import command_line
    from vdisagg.topology.load import load

    topology = load(file)
    recorded = read(state_root() / topology.name)
    plan = recorded.plan if recorded is not None else _planned(topology, file)
    typer.echo(command_line(manual_process(plan, instance)))
    if recorded is None:
        _say_on_stderr(f"cluster {plan.name} does not run yet: `up` may choose other ports")


@app.command(epilog="Example: vdisagg logs p0 -f")
def logs(
    process: Annotated[str, typer.Argument(metavar="NAME", help="p0, d0, front-end, controller …")],
    name: Name = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many last lines.")] = 100,
) -> None:
    """Print the last lines of a process's log."""
    from vdisagg.cluster.record import state_root
    from vdisagg.launch.logs import find_process
    from vdisagg.launch.nodes import Nodes

    directory = state_root() / _chosen(None, name)
    plan, found = find_process(directory, process)
    with Nodes(plan, directory) as nodes:
        runner = nodes(found.node)
        try:
            for line in runner.follow(found, lines) if follow else runner.tail(found, lines):
                typer.echo(line)
        except KeyboardInterrupt:  # how one ends following
            raise typer.Exit(0) from None


@app.command(epilog="Example: vdisagg events -f")
def events(
    file: OptionalFile = None,
    name: Name = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on as they happen; JSON: one a line.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what has happened to the cluster since it was brought up, with the reasons.

    Following goes on when the controller is started again, and ends when the cluster is taken down.
    """
    from vdisagg.cluster.record import state_root
    from vdisagg.launch.events import EventsOf
    from vdisagg.launch.events import follow as follow_events
    from vdisagg.launch.nodes import Nodes
    from vdisagg.view.events import event_line, events_json, events_text

    directory = state_root() / _chosen(file, name)
    cluster = EventsOf(directory)
    with Nodes(cluster.recorded.plan, directory) as nodes:
        if not follow:
            try:
                told = cluster.ask(nodes).events
            except ControllerGone:
                told = cluster.written()
                if told:
                    typer.echo(events_json(told) if as_json else events_text(told))
                raise
            typer.echo(events_json(told) if as_json else events_text(told))
            return
        try:
            for some in follow_events(
                lambda after: cluster.ask(nodes, after),
                is_over=cluster.is_over,
                wait=lambda: time.sleep(FOLLOW_S),
                say=_say_on_stderr,
            ):
                for event in some:
                    typer.echo(event_line(event, as_json=as_json))
        except KeyboardInterrupt:  # how one ends following
            raise typer.Exit(0) from None
    _say_on_stderr(f"cluster {directory.name} has been taken down")


@app.command(epilog="Example: vdisagg bench --rate 4 --num-requests 100 --save run.json")
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
        else run.cluster_target(_chosen(None, name), model, api_key_env)
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


def _planned(topology: Topology, file: Path, found: Found | None = None) -> Plan:
    """The plan; where `found` is left out, with the addresses that no node has to be asked for."""
    from vdisagg.launch.here import here_for, taken_ports
    from vdisagg.plan.make import make_plan

    here = here_for(topology, found)
    return make_plan(topology, here, file=file.absolute(), busy=taken_ports(topology.name))


def _check_nodes(topology: Topology, file: Path, as_json: bool) -> NoReturn:
    """Preflight by itself."""
    from vdisagg.cluster.findings import errors
    from vdisagg.cluster.record import state_root
    from vdisagg.launch.addresses import find_addresses
    from vdisagg.launch.nodes import Nodes
    from vdisagg.launch.preflight.check import check
    from vdisagg.view.console import show
    from vdisagg.view.preflight import findings_json, findings_table

    directory = state_root() / topology.name
    with Nodes(_planned(topology, file), directory) as nodes:
        found = find_addresses(topology, nodes.connection)
    findings = check(_planned(topology, file, found), directory)
    if as_json:
        typer.echo(findings_json(findings))
    else:
        show(findings_table(findings))
    raise typer.Exit(1 if errors(findings) else 0)


def _chosen(file: Path | None, name: str | None) -> str:
    """The name of the cluster that is meant.

    Raises UsageError when that is not clear; it names those that there are.
    """
    from vdisagg.cluster.record import recorded

    if file is not None and name is not None:
        raise UsageError("say FILE or --name, not both")
    if file is not None:
        from vdisagg.topology.load import load

        return load(file).name
    if name is not None:
        if "/" in name or name.startswith("."):
            raise UsageError(f"{name!r} is no cluster's name; recorded are: {_listed(recorded())}")
        return name
    names = recorded()
    if len(names) != 1:
        raise UsageError(f"which cluster? Say --name; recorded are: {_listed(names)}")
    return names[0]


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _nodes_of(directory: Path) -> Nodes:
    """The nodes of the cluster that is recorded in a state directory; none where nothing is."""
    from vdisagg.cluster.record import read
    from vdisagg.launch.nodes import Nodes

    recorded = read(directory)
    return Nodes(recorded.plan if recorded is not None else None, directory)


def _find_and_end(file: Path) -> DownResult:
    """End what is recorded of FILE's cluster, if anything, and then what is found of it on its nodes."""
    from vdisagg.cluster.record import state_directory
    from vdisagg.launch.down import down as take_down
    from vdisagg.launch.down import down_found
    from vdisagg.launch.here import here_for
    from vdisagg.launch.nodes import Nodes
    from vdisagg.plan.make import make_plan
    from vdisagg.topology.load import load

    topology = load(file)
    plan = make_plan(topology, here_for(topology), file=file.absolute())
    directory = state_directory(plan.name)
    with _nodes_of(directory) as nodes:
        known = take_down(nodes, state_directory=directory, say=_say_on_stderr)
    with Nodes(plan, directory) as nodes:
        found = down_found(plan, nodes, state_directory=directory, say=_say_on_stderr)
    return known.and_also(found)


def _say_on_stderr(text: str) -> None:
    typer.echo(text, err=True)
