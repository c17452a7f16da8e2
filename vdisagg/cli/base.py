"""What the commands share: options, which cluster is meant, its plan and its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vdisagg.cli.output import say_on_stderr
from vdisagg.errors import UsageError

if TYPE_CHECKING:
    from vdisagg.cluster.snapshot import DownResult, UpResult
    from vdisagg.launch.addresses import Found
    from vdisagg.launch.nodes import Nodes
    from vdisagg.plan.model import Plan
    from vdisagg.topology.model import Topology

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


def planned(topology: Topology, file: Path, found: Found | None = None) -> Plan:
    """The plan; where `found` is left out, with the addresses that no node has to be asked for."""
    from vdisagg.launch.here import here_for, taken_ports
    from vdisagg.plan.make import make_plan

    here = here_for(topology, found)
    return make_plan(topology, here, file=file.absolute(), busy=taken_ports(topology.name))


def bring_up(topology: Topology, file: Path, *, preflight: bool = True) -> UpResult:
    """Start what `topology` describes, showing how it goes on stderr. `file`: where it came from."""
    from vdisagg.cluster.record import state_directory
    from vdisagg.launch.addresses import find_addresses
    from vdisagg.launch.here import require_vllm
    from vdisagg.launch.interrupt import Interrupt
    from vdisagg.launch.nodes import Nodes
    from vdisagg.launch.preflight.check import checked_by
    from vdisagg.launch.up import up
    from vdisagg.view.progress import progress_view

    require_vllm(topology)
    directory = state_directory(topology.name)
    with (
        Interrupt(say_on_stderr) as interrupt,
        Nodes(planned(topology, file), directory) as first,
        progress_view() as view,
    ):
        found = find_addresses(topology, first.dialogue, tick=interrupt.check)
        plan = planned(topology, file, found)
        nodes = first.of(plan)
        return up(
            plan,
            nodes,
            state_directory=directory,
            report=view,
            runners_of=nodes.of,
            check=checked_by(nodes) if preflight else None,
        )


def take_down(name: str) -> DownResult:
    """End what is recorded of a cluster."""
    from vdisagg.cluster.record import state_root
    from vdisagg.cluster.snapshot import DownResult
    from vdisagg.launch.down import down

    directory = state_root() / name
    if not directory.is_dir():
        return DownResult(directory.name, ran=False, ended={}, log_files={})
    with nodes_of(directory) as nodes:
        return down(nodes, state_directory=directory, say=say_on_stderr)


def chosen(file: Path | None, name: str | None) -> str:
    """The name of the cluster that is meant.

    Raises UsageError when that is not clear; it names those that there are.
    """
    from vdisagg.cluster.record import recorded

    if file is not None and name is not None:
        raise UsageError("say FILE or --name, not both")
    if file is not None:
        return _named_in(file)
    if name is not None:
        if "/" in name or name.startswith("."):
            raise UsageError(f"{name!r} is no cluster's name; recorded are: {_listed(recorded())}")
        return name
    names = recorded()
    if len(names) != 1:
        raise UsageError(f"which cluster? Say --name; recorded are: {_listed(names)}")
    return names[0]


def _named_in(file: Path) -> str:
    """The name of a file's cluster. It may run although the file has been spoilt or removed since."""
    from vdisagg.cluster.record import recorded
    from vdisagg.topology.load import load

    try:
        if _is_missing(file):  # nobody wants to be shown one to start from
            raise UsageError(f"{file}: there is no such file")
        return load(file).name
    except UsageError as exc:
        without = f"next: `--name NAME` needs no file; recorded are: {_listed(recorded())}"
        raise UsageError(f"{exc}\n{without}") from exc


def _is_missing(file: Path) -> bool:
    try:
        file.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def nodes_of(directory: Path) -> Nodes:
    """The nodes of the cluster that is recorded in a state directory; none where nothing is."""
    from vdisagg.cluster.record import read
    from vdisagg.launch.nodes import Nodes

    recorded = read(directory)
    return Nodes(recorded.plan if recorded is not None else None, directory)


def said_options(context: typer.Context) -> set[str]:
    """The options that stand on the command line, each by its first name (`--rate`)."""
    sources = {
        parameter.opts[0]: context.get_parameter_source(parameter.name)
        for parameter in context.command.params
        if parameter.name is not None
    }
    return {
        option
        for option, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }
