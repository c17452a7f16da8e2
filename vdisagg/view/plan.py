"""A plan for people and for programs: the three forms that `vdisagg check` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from vdisagg.plan.commands import command_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vdisagg.plan.model import Instance, Plan, Process


def plan_table(plan: Plan) -> RenderableType:
    """One row for each process, in launch order, and where the API will be."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "ROLE", "NODE", "GPUS", "PORTS"):
        table.add_column(heading, no_wrap=True)
    table.add_column("DIRECTORY", overflow="fold")
    _row(table, plan.controller, "controller", (), ())
    for tunnel in plan.tunnels:
        _row(table, tunnel, "tunnel", (), ())
    for instance in plan.instances:
        by_hand = "started by hand" if instance.manual else ""
        _row(table, instance.process, instance.role, instance.gpus, _ports(instance), by_hand)
    front_end = plan.front_end
    ports = (front_end.http.port, front_end.handshake.port)
    _row(table, front_end.process, "front end", (), ports)
    # Text, not markup: a path may hold brackets.
    prefill = sum(instance.role == "prefill" for instance in plan.instances)
    shape = f"{prefill}P{len(plan.instances) - prefill}D"
    head = Text(f"{plan.name}: {shape}, {plan.connector}, {plan.model}")
    foot = Text(f"API: {front_end.url}/v1, model {front_end.served_model_name}")
    return Group(head, "", table, "", foot)


def plan_json(plan: Plan) -> str:
    """The whole plan as indented JSON. Secrets are names of variables and files, never values."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()


def plan_commands(plan: Plan) -> str:
    """The command line of every process, each under a comment that names it: in launch order, and
    last those that somebody else starts."""
    blocks = [
        f"# {process.name} on {process.node}\n{command_line(process)}"
        for process in plan.processes()
    ]
    blocks += [
        f"# {i.name} on {i.process.node}, to be started by hand\n{command_line(i.process)}"
        for i in plan.manual_instances()
    ]
    return "\n\n".join(blocks)


def _ports(instance: Instance) -> tuple[int, ...]:
    own = (instance.handshake.port, instance.requests.port, instance.outputs.port)
    return (*own, *instance.connector_ports)


def _row(
    table: Table,
    process: Process,
    role: str,
    gpus: tuple[int, ...],
    ports: tuple[int, ...],
    directory: str = "",
) -> None:
    words = (process.name, role, process.node, _spans(gpus) or "-", _spans(ports) or "-")
    table.add_row(*map(Text, (*words, directory or process.directory)))


def _spans(numbers: tuple[int, ...]) -> str:
    """`21000-21003, 8000`: runs are joined."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
