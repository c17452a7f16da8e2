"""Pure: how far a cluster has come on its way up, out of what was observed at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from vdisagg.cluster.admin import ControllerStatus
from vdisagg.cluster.snapshot import Observation, Progress

if TYPE_CHECKING:
    from vdisagg.plan.model import Plan

LINKS = "links"
NO_ENDS: Mapping[str, int] = MappingProxyType({})


class Sighting(msgspec.Struct, frozen=True):
    """Everything that was observed at one moment."""

    observations: dict[str, Observation]
    """By process; a process that has not been started yet is absent."""
    controller: ControllerStatus | None
    """None while nothing answers on the admin socket."""
    http_ok: bool
    """Whether GET /health on the front end was answered with 200."""
    tunnels: Mapping[str, str] = MappingProxyType({})
    """By tunnel that runs: why it carries nothing at the moment, empty where it does."""


class Casualty(msgspec.Struct, frozen=True):
    """A process that will not become ready any more."""

    name: str
    how: str
    generation: int = 1
    """Of the life that has ended."""


def progress(plan: Plan, seen: Sighting, elapsed_s: float) -> list[Progress]:
    """One entry for each process in launch order, for each instance that somebody else starts, and
    for the links.

    `elapsed_s` is the time since `up` began, one for all.
    """
    found = []
    for process in plan.processes():
        stage, detail = _stage(plan, process.name, seen)
        found.append(Progress(process.name, stage, elapsed_s, stage == "ready", detail))
    for instance in plan.manual_instances():
        stage, detail = _stage_of_running(plan, instance.name, seen)
        stage, detail = ("awaited", "is started by hand") if stage == "loading" else (stage, detail)
        found.append(Progress(instance.name, stage, elapsed_s, stage == "ready", detail))
    links = seen.controller.links if seen.controller is not None else []
    warm = sum(link.state == "warm" for link in links)
    wanted = _links_wanted(plan)
    waiting = ", ".join(
        f"{link.prefill}→{link.decode} {link.state}{f' ({link.reason})' if link.reason else ''}"
        for link in links
        if link.state != "warm"
    )
    stage = f"{warm}/{wanted} warm"
    found.append(Progress(LINKS, stage, elapsed_s, warm >= wanted, waiting))
    return found


def _links_wanted(plan: Plan) -> int:
    roles = [instance.role for instance in plan.instances]
    return roles.count("prefill") * roles.count("decode")


def _stage(plan: Plan, name: str, seen: Sighting) -> tuple[str, str]:
    observation = seen.observations.get(name)
    if observation is None or observation.state == "never":
        return "launching", ""
    if observation.state == "unreachable":
        stage, detail = _stage_of_running(plan, name, seen)
        return ("unreachable", observation.reason) if stage == "loading" else (stage, detail)
    if observation.state == "restarting":
        return "restarting", observation.how_it_ended
    if observation.state != "running":
        return "dead", observation.how_it_ended
    return _stage_of_running(plan, name, seen)


def _stage_of_running(plan: Plan, name: str, seen: Sighting) -> tuple[str, str]:
    """What the controller and the front end make of a process that runs, as far as is known."""
    if name in {tunnel.name for tunnel in plan.tunnels}:
        fault = seen.tunnels.get(name, "")
        return ("connecting", fault) if fault else ("ready", "")
    if name == plan.controller.name:
        return ("ready", "") if seen.controller is not None else ("loading", "")
    if seen.controller is None:
        return "loading", ""
    if name == plan.front_end.process.name:
        if seen.controller.front_end != "attached":
            return "loading", ""
        return ("ready", "") if seen.http_ok else ("connected", "")
    for instance in seen.controller.instances:
        if instance.name == name:
            state: str = instance.state
            return ("loading" if state in ("planned", "launching") else state), instance.reason
    return "loading", ""


def casualty(plan: Plan, seen: Sighting, ends: Mapping[str, int] = NO_ENDS) -> Casualty | None:
    """The first process, in launch order, that has died, if any; also when its guard has started it
    again, or will. `ends` is how often each had ended before, by name."""
    for process in plan.processes():
        observation = seen.observations.get(process.name)
        if observation is None:
            continue
        if observation.state == "gone" and observation.guard_alive:
            continue  # its guard will say how it ended
        if observation.state in ("exited", "gone"):
            return Casualty(process.name, observation.how_it_ended, observation.generation)
        if observation.ends > ends.get(process.name, 0):
            life = observation.generation - (observation.state == "running")
            return Casualty(process.name, observation.last_end or "started again", life)
    for instance in seen.controller.instances if seen.controller is not None else []:
        if instance.state == "dead":
            return Casualty(instance.name, f"reported dead: {instance.reason or 'no reason given'}")
    return None


def broken_links(seen: Sighting) -> list[str]:
    """Links over which decode's answer was another one than it computes alone, and how, for people."""
    links = seen.controller.links if seen.controller is not None else []
    return [f"{n.prefill}→{n.decode}: {n.reason}" for n in links if n.state == "down"]
