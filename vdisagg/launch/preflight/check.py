"""Preflight by itself (`vdisagg check --nodes`) and in front of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from vdisagg.cluster import record
from vdisagg.cluster.findings import errors, warnings
from vdisagg.errors import PreflightFailed
from vdisagg.launch.nodes import Nodes
from vdisagg.launch.preflight.conduct import preflight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vdisagg.cluster.findings import Finding
    from vdisagg.plan.model import Plan


class Check(Protocol):
    """What `up` calls before it launches anything."""

    def __call__(self, plan: Plan, *, running: bool, tick: Callable[[], None]) -> Sequence[Finding]:
        """Findings about the nodes; `running`: some of the plan's processes run already. `tick` is
        called several times a second; what it raises breaks the look off."""


def check(plan: Plan, state_directory: Path, *, tick: Callable[[], None]) -> tuple[Finding, ...]:
    """Look at the nodes of a plan; of the recorded one, where the same cluster is recorded as up.

    `tick` is called several times a second, and may raise to break off.
    Raises Failure where the record can't be read.
    """
    recorded = record.read(state_directory)
    if recorded is not None and recorded.plan.digest == plan.digest:
        plan = recorded.plan  # its ports are its own; a new plan would avoid them
    with Nodes(plan, state_directory) as nodes:
        return preflight(plan, nodes, running=recorded is not None, tick=tick)


def checked_by(nodes: Nodes) -> Check:
    """What `up` calls, over connections that it uses afterwards too."""

    def look(plan: Plan, *, running: bool, tick: Callable[[], None]) -> tuple[Finding, ...]:
        return preflight(plan, nodes.of(plan), running=running, tick=tick)

    return look


def refuse_errors(plan: Plan, findings: Sequence[Finding], say: Callable[[str], None]) -> None:
    """Say the warnings. Raises PreflightFailed that names every error."""
    for warning in warnings(findings):
        say(f"warning: {warning}")
    if wrong := errors(findings):
        file = plan.topology_file or "FILE"
        raise PreflightFailed(
            "\n".join(
                (
                    "nothing was started, as the nodes are not fit for it:",
                    *(f"  {finding}" for finding in wrong),
                    f"next: mend that, and look again by `vdisagg check {file} --nodes`",
                )
            )
        )
