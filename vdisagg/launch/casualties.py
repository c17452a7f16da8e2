"""Pure: which processes of a cluster that is up have to be started again, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vdisagg.cluster.admin import ControllerStatus, InstanceStatus
    from vdisagg.cluster.snapshot import Observation
    from vdisagg.plan.model import Plan

NEWBORN_S = 15.0
"""An engine that was called dead within this time of its start was called so for its predecessor: the
controller says it up to `SUSPECT_S` after connections are gone, and clocks of nodes differ."""


def casualties(
    plan: Plan, observations: Mapping[str, Observation], controller: ControllerStatus | None
) -> dict[str, str]:
    """Why each process that is dead, or hangs, is one, by its name, in launch order.

    `controller` is None where it does not answer. What cannot be seen, on a node that does not answer,
    is none.
    """
    instances = controller.instances if controller is not None else []
    heard = {instance.name: instance for instance in instances}
    found = {}
    for process in plan.processes():
        seen = observations[process.name]
        if process.name == plan.controller.name and controller is None:
            why = _why_dead(seen) or "runs, and does not answer"
        else:
            why = _why_dead(seen) or _why_hanging(seen, heard.get(process.name))
        if why and seen.state != "unreachable":
            found[process.name] = why
    return found


def is_deciding(controller: ControllerStatus | None) -> bool:
    """Whether the controller is silent, or about to make up its mind about an engine."""
    return controller is None or any(i.state == "suspect" for i in controller.instances)


def _why_dead(seen: Observation) -> str:
    if seen.state == "never":
        return "was never started"
    return seen.how_it_ended


def _why_hanging(seen: Observation, instance: InstanceStatus | None) -> str:
    if seen.stopped:
        return "is stopped by a signal"
    if instance is None or instance.state not in ("suspect", "dead"):
        return ""
    if seen.started_at is not None and instance.since < seen.started_at + NEWBORN_S:
        return ""
    because = f": {instance.reason}" if instance.reason else ""
    return f"runs, and is {instance.state} to the controller{because}"
