"""`up`, `down`, `status`, `check`, `connect`. Imports stand in the commands, since `status` has 0.3 s."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vdisagg.cli.base import (
    File,
    Json,
    Name,
    OptionalFile,
    bring_up,
    chosen,
    nodes_of,
    planned,
    take_down,
)
from vdisagg.cli.output import say_on_stderr, tell
from vdisagg.errors import RecordUnreadable, UsageError

if TYPE_CHECKING:
    from vdisagg.cluster.snapshot import DownResult
    from vdisagg.topology.model import Topology

commands = typer.Typer()


@commands.command(epilog="Example: vdisagg up topologies/demo.yaml")
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
    from vdisagg.topology.load import load
    from vdisagg.view.result import result_json, up_text

    result = bring_up(load(file), file, preflight=preflight)
    told = result_json(result) if as_json else up_text(result)
    tell(told, holds=f"cluster {result.name} is up all the same")


@commands.command(epilog="Example: vdisagg down --name demo")
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
    from vdisagg.cluster.record import recorded

    if find:
        if file is None or name is not None:
            raise UsageError("--find needs FILE: its nodes are searched for what runs there")
        result = _find_and_end(file)
        _tell_down(result, as_json)
        return
    if file is None and name is None and not recorded():
        tell("null" if as_json else "no cluster is recorded, so nothing runs")
        return
    result = take_down(chosen(file, name))
    _tell_down(result, as_json)


def _tell_down(result: DownResult, as_json: bool) -> None:
    from vdisagg.view.result import down_text, result_json

    told = result_json(result) if as_json else down_text(result)
    tell(told, holds=f"cluster {result.name} is down all the same")


@commands.command(epilog="Example: vdisagg status --name demo")
def status(file: OptionalFile = None, name: Name = None, as_json: Json = False) -> None:
    """Show a cluster's processes, links and load, and what is wrong.

    Needs no name where one cluster is recorded. Exit code 0 when the cluster is up and healthy,
    else 1.
    """
    from vdisagg.cluster.record import recorded, state_root
    from vdisagg.launch.status import status as look
    from vdisagg.view.status import status_json, status_text

    if file is None and name is None and not recorded():
        tell("null" if as_json else "no cluster is recorded, so nothing runs")
        raise typer.Exit(1)
    directory = state_root() / chosen(file, name)
    # Not closed: letting go of a node that is silent would hold up the answer.
    view = look(nodes_of(directory), state_directory=directory)
    tell(status_json(view) if as_json else status_text(view, now=time.time()))
    raise typer.Exit(0 if view.healthy else 1)


@commands.command(epilog="Example: vdisagg check topologies/demo.yaml --commands")
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
    from vdisagg.view.plan import plan_commands, plan_json, plan_text
    from vdisagg.view.text import terminal_width

    if commands and (nodes or as_json):
        other = "--nodes" if nodes else "--json"
        raise UsageError(f"say --commands or {other}, not both: each prints something else")
    topology = load(file)
    if nodes:
        _check_nodes(topology, file, as_json)
    plan = planned(topology, file)
    if as_json:
        tell(plan_json(plan))
    elif commands:
        tell(plan_commands(plan))
    else:
        tell(plan_text(plan, width=terminal_width()))


@commands.command(epilog="Example: vdisagg connect my.yaml d1")
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
    plan = recorded.plan if recorded is not None else planned(topology, file)
    tell(command_line(manual_process(plan, instance)))
    if recorded is None:
        say_on_stderr(f"cluster {plan.name} does not run yet: `up` may choose other ports")


def _check_nodes(topology: Topology, file: Path, as_json: bool) -> NoReturn:
    """Preflight by itself."""
    from vdisagg.cluster.findings import errors
    from vdisagg.cluster.record import state_root
    from vdisagg.launch.addresses import find_addresses
    from vdisagg.launch.interrupt import Interrupt
    from vdisagg.launch.nodes import Nodes
    from vdisagg.launch.preflight.check import check
    from vdisagg.view.console import rendered
    from vdisagg.view.preflight import findings_json, findings_table

    directory = state_root() / topology.name
    with Interrupt(say_on_stderr) as interrupt:
        with Nodes(planned(topology, file), directory) as nodes:
            found = find_addresses(topology, nodes.dialogue, tick=interrupt.check)
        findings = check(planned(topology, file, found), directory, tick=interrupt.check)
    if as_json:
        tell(findings_json(findings))
    else:
        tell(rendered(findings_table(findings)))
    raise typer.Exit(1 if errors(findings) else 0)


def _find_and_end(file: Path) -> DownResult:
    """End what is recorded of FILE's cluster, if anything, and then what is found of it on its nodes."""
    from vdisagg.cluster.record import state_directory
    from vdisagg.launch.down import down as end
    from vdisagg.launch.down import down_found
    from vdisagg.launch.here import here_for
    from vdisagg.launch.nodes import Nodes
    from vdisagg.plan.make import make_plan
    from vdisagg.topology.load import load

    topology = load(file)
    plan = make_plan(topology, here_for(topology), file=file.absolute())
    directory = state_directory(plan.name)
    known = None
    try:
        with nodes_of(directory) as nodes:
            known = end(nodes, state_directory=directory, say=say_on_stderr)
    except RecordUnreadable as exc:
        say_on_stderr(f"{str(exc).partition(';')[0]}; so only the nodes of {file} are searched")
    with Nodes(plan, directory) as nodes:
        found = down_found(plan, nodes, state_directory=directory, say=say_on_stderr)
    return known.and_also(found) if known is not None else found
