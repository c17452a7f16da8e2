"""`logs` and `events`: what a cluster tells while it runs. Imports stand in the commands: see clusters.py."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from vdisagg.cli.base import Json, Name, OptionalFile, chosen
from vdisagg.cli.output import say_on_stderr, tell
from vdisagg.errors import ControllerGone

FOLLOW_S = 0.5
"""Between two questions for news."""

commands = typer.Typer()


@commands.command(epilog="Example: vdisagg logs p0 -f")
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

    directory = state_root() / chosen(None, name)
    plan, found = find_process(directory, process)
    with Nodes(plan, directory) as nodes:
        runner = nodes(found.node)
        try:
            for line in runner.follow(found, lines) if follow else runner.tail(found, lines):
                if not tell(line):
                    return
        except KeyboardInterrupt:  # how one ends following
            raise typer.Exit(0) from None


@commands.command(epilog="Example: vdisagg events -f")
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

    directory = state_root() / chosen(file, name)
    cluster = EventsOf(directory)
    # Not closed: a connection that is still being made would hold up the answer.
    nodes = Nodes(cluster.recorded.plan, directory)
    if not follow:
        try:
            told = cluster.ask(nodes).events
        except ControllerGone:
            told = cluster.written()
            if told:
                tell(events_json(told) if as_json else events_text(told))
            raise
        tell(events_json(told) if as_json else events_text(told))
        return
    try:
        for some in follow_events(
            lambda after: cluster.ask(nodes, after),
            is_over=cluster.is_over,
            wait=lambda: time.sleep(FOLLOW_S),
            say=say_on_stderr,
        ):
            for event in some:
                if not tell(event_line(event, as_json=as_json)):
                    return
    except KeyboardInterrupt:  # how one ends following
        raise typer.Exit(0) from None
    say_on_stderr(f"cluster {directory.name} has been taken down")
