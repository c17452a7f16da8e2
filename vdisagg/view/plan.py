"""A plan for people and for programs: the three forms that `vdisagg check` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vdisagg.plan.commands import command_line
from vdisagg.view.text import columns

if TYPE_CHECKING:
    from vdisagg.plan.model import Instance, Plan, Process


def plan_text(plan: Plan, *, width: int | None = None) -> str:
    """One row for each process, in launch order, and where the API will be.

    With `width` (in characters) what is longer goes on in further lines.
    """
    rows = [
        ("NAME", "ROLE", "NODE", "GPUS", "PORTS", "DIRECTORY"),
        _row(plan.controller, "controller", (), ()),
        *(_row(tunnel, "tunnel", (), ()) for tunnel in plan.tunnels),
    ]
    for instance in plan.instances:
        by_hand = "started by hand" if instance.manual else ""
        rows.append(_row(instance.process, instance.role, instance.gpus, _ports(instance), by_hand))
    front_end = plan.front_end
    ports = (front_end.http.port, front_end.handshake.port)
    rows.append(_row(front_end.process, "front end", (), ports))
    prefill = sum(instance.role == "prefill" for instance in plan.instances)
    shape = f"{prefill}P{len(plan.instances) - prefill}D"
    head = f"{plan.name}: {shape}, {plan.connector}, {plan.model}"
    foot = f"API: {front_end.url}/v1, model {front_end.served_model_name}"
    return "\n".join([head, "", *columns(rows, width=width), "", foot])


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
    process: Process,
    role: str,
    gpus: tuple[int, ...],
    ports: tuple[int, ...],
    directory: str = "",
) -> tuple[str, ...]:
    where = directory or process.directory
    return (process.name, role, process.node, _spans(gpus) or "-", _spans(ports) or "-", where)


def _spans(numbers: tuple[int, ...]) -> str:
    """`21000-21003, 8000`: runs are joined."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
