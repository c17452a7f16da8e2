"""Plan → what to ask of each node. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vdisagg.launch.preflight import argv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vdisagg.plan.model import Node, Plan, Process


def visited(plan: Plan) -> tuple[Node, ...]:
    """Nodes with processes that are ours to start, or with a tunnel's end."""
    used = {process.node for process in plan.processes()}
    over_ssh = {node.name for node in plan.ssh_nodes()}
    return tuple(n for n in plan.nodes if n.name in (used if n.ssh is None else over_ssh))


def look_job(
    plan: Plan, node: Node, secrets: Mapping[str, str], *, running: bool
) -> dict[str, Any]:
    """The job of node/machine.py `look`. `running`: its own cluster is up and holds its ports."""
    stock = stock_processes(plan, node.name)
    ports = plan.ports_of(node.name)
    first = stock[0] if stock else None
    return {
        "step": "look",
        "directory": f"{node.work_directory}/{plan.name}",
        "ports": [] if running else [[address.host, address.port] for address in ports],
        "vllm": None if first is None else _vllm(first),
        "model": None if first is None else _model(plan, first),
        "gpus": bool(planned_gpus(plan, node.name)),
        "secrets": dict(secrets),
    }


def stock_processes(plan: Plan, node: str) -> tuple[Process, ...]:
    """The processes on a node that are vLLM and ours to start, engines first."""
    engines = (instance.process for instance in plan.instances if not instance.manual)
    return tuple(p for p in (*engines, plan.front_end.process) if p.node == node)


def planned_gpus(plan: Plan, node: str) -> dict[int, str]:
    """GPU index → instance, on one node."""
    return {
        gpu: instance.name
        for instance in plan.instances
        if instance.process.node == node and not instance.manual
        for gpu in instance.gpus
    }


def shares_memory(plan: Plan, node: str) -> bool:
    """Whether processes of one engine exchange tensors through /dev/shm on this node."""
    return any(
        instance.gpus or argv.world_size(instance.process.argv) > 1
        for instance in plan.instances
        if instance.process.node == node
    )


def _vllm(process: Process) -> dict[str, Any]:
    wrapper, command = argv.split(process.argv)
    return {"wrapper": list(wrapper), "command": list(command), "env": process.env}


def _model(plan: Plan, process: Process) -> dict[str, Any]:
    return {
        "name": plan.model,
        "revision": argv.value(process.argv, "revision") or "",
        "cache": argv.value(process.argv, "download-dir") or "",
    }
