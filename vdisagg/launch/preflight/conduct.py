"""Preflight: asks all nodes at once, tries the paths between them, and judges what came of it."""

from __future__ import annotations

import os
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from vdisagg.cluster.findings import Finding
from vdisagg.errors import Failure, UsageError
from vdisagg.launch.background import at_once
from vdisagg.launch.dialogue import NoPython
from vdisagg.launch.preflight import agree, calls, judge, needs, routes
from vdisagg.launch.preflight.asking import ask
from vdisagg.launch.preflight.facts import Facts, Skew, skew
from vdisagg.launch.secrets import read_secrets
from vdisagg.plan.model import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vdisagg.launch.dialogue import Dialogue
    from vdisagg.plan.model import Node, Plan

LOOK_LIMIT_S = 100.0  # the sum of what a node's own steps may take, and the connecting
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class Nodes(Protocol):
    """What preflight wants of launch.nodes.Nodes."""

    def dialogue(self, name: str) -> Dialogue:
        """What a node is asked through; it is reached when first used."""

    def try_forward(self, name: str, port: int) -> None:
        """Have a port of a node lead here, and undo it at once. Raises Failure."""


class Look(msgspec.Struct, frozen=True):
    """One node's facts, and its clock."""

    facts: Facts
    skew: Skew


def preflight(
    plan: Plan,
    nodes: Nodes,
    *,
    running: bool = False,
    tick: Callable[[], None] | None = None,
    environment: Mapping[str, str] = os.environ,
    now: Callable[[], float] = time.time,
) -> tuple[Finding, ...]:
    """Everything that speaks for or against launching the plan, all nodes looked at together.

    `running`: the cluster is up, so that its own ports and GPUs are taken, by itself. A node that
    does not answer costs its own row, and those of paths that end there. `tick` is called several times
    a second, and may raise to break off. `environment` has the values of secrets; `now` is Unix time.
    """
    visited = {node.name: node for node in needs.visited(plan)}
    dialogues = {name: nodes.dialogue(name) for name in visited}
    tokens, findings = _tokens(plan, environment)
    work = {
        name: partial(_look, plan, node, dialogues[name], tokens.get(name, {}), running, now)
        for name, node in visited.items()
    }
    looks: dict[str, Look] = {}
    for name, outcome in at_once(work, tick=tick).items():
        if isinstance(outcome, Failure):
            findings.append(_silent(visited[name], outcome))
        else:
            looks[name] = outcome
            findings += judge.judge(
                plan, visited[name], outcome.facts, outcome.skew, running=running
            )
    findings += _together(plan, looks)
    findings += _left_to_others(plan, visited)
    if running:
        findings.append(_up_already(plan))
    else:
        findings += _try_tunnels(plan, nodes, looks, tick)
        findings += _try_paths(
            plan, {name: visited[name] for name in looks}, dialogues, looks, tick
        )
    return _in_order(plan, findings)


def _tokens(
    plan: Plan, environment: Mapping[str, str]
) -> tuple[dict[str, dict[str, str]], list[Finding]]:
    """The hub's token for each node, where its secrets name one; and secrets that are missing."""
    tokens: dict[str, dict[str, str]] = {}
    findings: dict[Finding, None] = {}
    for process in plan.processes():
        try:
            values = read_secrets([process], environment)[process.name]
        except UsageError as exc:
            for line in str(exc).splitlines():
                found, _, next_ = line.partition("; next: ")
                findings[Finding(process.node, "secrets", found, "a value", next_)] = None
            continue
        mine = {name: value for name, value in values.items() if name in HUB_TOKENS}
        tokens.setdefault(process.node, {}).update(mine)
    return tokens, list(findings)


def _look(
    plan: Plan,
    node: Node,
    dialogue: Dialogue,
    tokens: Mapping[str, str],
    running: bool,
    now: Callable[[], float],
) -> Look:
    job = needs.look_job(plan, node, tokens, running=running)
    dialogue.arrive()  # here, so that the way there does not count as the clock's skew
    asked_at = now()
    answer = ask(dialogue, job, limit_s=LOOK_LIMIT_S)
    answered_at = now()
    facts = msgspec.convert(answer, Facts)
    return Look(facts, skew(facts, asked_at, answered_at))


def _silent(node: Node, failure: Failure) -> Finding:
    found, _, next_ = str(failure).removeprefix(f"{node.name}: ").partition("; next: ")
    if isinstance(failure, NoPython):
        return Finding(node.name, "Python", failure.tried, "Python 3.8 or later", next_)
    return Finding(node.name, "reachable", found, "an answer", next_)


def _together(plan: Plan, looks: Mapping[str, Look]) -> list[Finding]:
    vllm = {name: look.facts.vllm for name, look in looks.items() if look.facts.vllm is not None}
    models = {n: look.facts.model for n, look in looks.items() if look.facts.model is not None}
    return [
        *agree.settings(plan),
        *agree.versions(plan, vllm),
        *agree.models(plan, models),
    ]


def _left_to_others(plan: Plan, visited: Mapping[str, Node]) -> list[Finding]:
    """Instances that somebody else starts, on nodes that are not ours to enter."""
    return [
        Finding(i.process.node, "not looked at", f"{i.name} is started by hand", level="note")
        for i in plan.manual_instances()
        if i.process.node not in visited
    ]


def _up_already(plan: Plan) -> Finding:
    found = f"cluster {plan.name} runs: its ports, its GPUs and the paths between nodes are in use"
    return Finding(agree.ALL, "not tested", found, level="note")


def _try_tunnels(
    plan: Plan, nodes: Nodes, looks: Mapping[str, Look], tick: Callable[[], None] | None
) -> list[Finding]:
    """Have sshd carry one port of each node that a tunnel leads to: it allows all of them, or none."""
    work = {}
    for name, ports in plan.tunnelled().items():
        taken = {port for _, port, _ in looks[name].facts.busy} if name in looks else set(ports)
        for port in [one for one in ports if one not in taken][:1]:
            work[name] = partial(nodes.try_forward, name, port)
    return [
        _refused(name, outcome)
        for name, outcome in at_once(work, tick=tick).items()
        if isinstance(outcome, Failure)
    ]


def _refused(node: str, failure: Failure) -> Finding:
    found, _, next_ = str(failure).removeprefix(f"{node}: ").partition("; next: ")
    return Finding(node, "tunnel", found, "a forwarded port", next_)


def _try_paths(
    plan: Plan,
    nodes: Mapping[str, Node],
    dialogues: Mapping[str, Dialogue],
    looks: Mapping[str, Look],
    tick: Callable[[], None] | None,
) -> list[Finding]:
    """Have the nodes call each other, as the cluster's processes will.

    Where a port is taken, nobody of ours can listen, and a finding has said so already.
    """
    busy = {
        (name, Address(host, port))
        for name, look in looks.items()
        for host, port, _ in look.facts.busy
    }
    every = routes.routes(plan, nodes)
    some = [route for route in every if (route.target, route.address) not in busy]
    if not some:
        return []
    called = calls.call_all(some, dialogues, nonce=secrets.token_hex(16), tick=tick)
    silent = [_silent(nodes[name], failure) for name, failure in called.failures.items()]
    count = sum(called.heard.get((route.source, route.address)) == "" for route in some)
    found = f"{count} of {len(some)} between nodes are open"
    note = Finding(agree.ALL, "paths", found, level="note")
    return [*silent, *routes.judge(some, called.heard, called.listened), note]


def _in_order(plan: Plan, findings: list[Finding]) -> tuple[Finding, ...]:
    """By node in the plan's order, the whole cluster's last; each once."""
    order = {node.name: at for at, node in enumerate(plan.nodes)}
    return tuple(sorted(dict.fromkeys(findings), key=lambda f: order.get(f.node, len(order))))
