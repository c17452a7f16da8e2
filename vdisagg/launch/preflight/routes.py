"""Which machines of a plan dial which, and what a call that failed means. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vdisagg.cluster.findings import Finding
from vdisagg.plan.model import Address

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from vdisagg.plan.model import Plan


class Route(msgspec.Struct, frozen=True):
    """Processes of one node that dial one address of another."""

    source: str
    """Node."""
    target: str
    """Node."""
    address: Address
    callers: tuple[str, ...]
    """Processes on the source."""
    what: str
    """What listens there: `p0's side channel`."""


def routes(plan: Plan, nodes: Collection[str]) -> tuple[Route, ...]:
    """All routes between two different ones of `nodes`, each once.

    Engine → controller and controller → front end, except through a tunnel; decode → prefill on the
    side channels.
    """
    found: dict[tuple[str, str, Address], Route] = {}

    def add(source: str, target: str, address: Address, caller: str, what: str) -> None:
        if source == target or source not in nodes or target not in nodes:
            return
        key = (source, target, address)
        callers = (*found[key].callers, caller) if key in found else (caller,)
        found[key] = Route(source, target, address, callers, what)

    controller = plan.controller
    for i in plan.instances:
        if plan.control == "direct":
            for address, name in zip(i.control, ("handshake", "requests", "outputs"), strict=True):
                what = f"the controller's {name} port"
                add(i.process.node, controller.node, address, i.name, what)
    front = plan.front_end
    add(controller.node, front.process.node, front.handshake, controller.name, "the front end")
    for d in (i for i in plan.instances if i.role == "decode"):
        for p, address in side_channels(plan):
            add(d.process.node, p[1], address, d.name, f"{p[0]}'s side channel")
    return tuple(found.values())


def side_channels(plan: Plan) -> list[tuple[tuple[str, str], Address]]:
    """((prefill instance, its node), address), for each port."""
    hosts = {node.name: node.address for node in plan.nodes}
    return [
        ((i.name, i.process.node), Address(hosts[i.process.node], port))
        for i in plan.instances
        if i.role == "prefill" and i.process.node in hosts
        for port in i.connector_ports
    ]


def listening(some: Collection[Route]) -> dict[str, dict[Address, int]]:
    """By node: the addresses to listen on, with the number of nodes that will call."""
    wanted: dict[str, dict[Address, int]] = {}
    for route in some:
        at = wanted.setdefault(route.target, {})
        at[route.address] = at.get(route.address, 0) + 1
    return wanted


def dialling(some: Collection[Route]) -> dict[str, list[Address]]:
    """By node: the addresses to call."""
    wanted: dict[str, list[Address]] = {}
    for route in some:
        wanted.setdefault(route.source, []).append(route.address)
    return wanted


def judge(
    some: Collection[Route],
    heard: Mapping[tuple[str, Address], str],
    listened: Mapping[tuple[str, Address], str],
) -> list[Finding]:
    """Findings for the routes that are not open.

    `heard`: by source and address, why a call failed, "" where it did not. `listened`: by target and
    address, why there was no listener. What is in neither was not tried, which another finding says.
    """
    findings = []
    for route in some:
        fault = heard.get((route.source, route.address), "")
        if not fault or listened.get((route.target, route.address), "not tried"):
            continue  # a port that can't be listened on has a finding of its own
        callers = ", ".join(route.callers)
        found = (
            f"{callers} on {route.source} cannot reach {route.what} {route.address} "
            f"on {route.target}: {fault}"
        )
        findings.append(
            Finding(route.source, "path", found, "a TCP connection", _next(route, fault))
        )
    return findings


def _next(route: Route, fault: str) -> str:
    if "something else" in fault:
        return (
            f"{route.address} leads from {route.source} to another machine than {route.target}: "
            f"say another `data_ip:` in nodes.{route.target}"
        )
    return (
        f"open TCP port {route.address.port} from {route.source} to {route.target}, or say another "
        f"`data_ip:` in nodes.{route.target}"
    )
