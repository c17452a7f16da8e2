"""Says truthfully how a cluster is, out of its record, its guards' files and its controller."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from vdisagg.cluster import record
from vdisagg.cluster.snapshot import ClusterView, Observation, Phase, ProcessView
from vdisagg.launch import passage
from vdisagg.launch.lookout import observe_all, unreachable
from vdisagg.launch.sight import ask_controller, log_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdisagg.cluster.admin import ControllerStatus, InstanceStatus
    from vdisagg.cluster.record import Holder, Record
    from vdisagg.launch.runner import RunnerFor
    from vdisagg.plan.model import Instance, Plan, Process

ADMIN_LIMIT_S = 1.0  # a living controller answers in milliseconds
NODES_LIMIT_S = 3.0  # connecting included; people wait for the answer


def status(
    runner_for: RunnerFor,
    *,
    state_directory: Path,
    admin_limit_s: float = ADMIN_LIMIT_S,
    nodes_limit_s: float = NODES_LIMIT_S,
    now: Callable[[], float] = time.time,
) -> ClusterView:
    """The cluster whose state is in `state_directory`, as it is at this moment. Who has not answered within
    its limit, the controller or a node, is said to be silent.

    Raises Failure when the record is unreadable.
    """
    name = state_directory.name
    holder = record.holder(state_directory)
    recorded = record.read(state_directory)
    if recorded is None:
        at_work = f"{holder} is at work on it" if holder else "nothing runs"
        return ClusterView(name, "absent", False, (at_work,), str(state_directory), holder=holder)
    plan = recorded.plan
    observations = observe_all(plan, runner_for, recorded.processes, limit_s=nodes_limit_s)
    controller, silence = ask_controller(plan, state_directory, runner_for, timeout_s=admin_limit_s)
    tunnels = passage.faults(plan, observations)
    phase = _phase(recorded, holder)
    problems = [
        *_phase_problems(recorded, phase, holder, now()),
        *_process_problems(plan, observations, now()),
        *(f"{name}: {fault}" for name, fault in tunnels.items() if fault),
    ]
    if controller is not None:
        problems += _controller_problems(controller)
    elif observations[plan.controller.name].state == "running":
        problems.append(silence)
    return ClusterView(
        name=name,
        phase=phase,
        healthy=phase == "up" and not problems,
        problems=tuple(problems),
        state_directory=str(state_directory),
        url=plan.front_end.url,
        model=plan.front_end.served_model_name,
        topology_file=plan.topology_file,
        created=recorded.created,
        holder=holder,
        processes=tuple(
            _process_view(
                plan, process, observations[process.name], controller, tunnels.get(process.name, "")
            )
            for process in plan.processes()
        )
        + tuple(_manual_view(instance, controller) for instance in plan.manual_instances()),
        controller_answers=controller is not None,
        front_end=controller.front_end if controller is not None else None,
        links=tuple(controller.links) if controller is not None else (),
        totals=controller.totals if controller is not None else None,
    )


def _phase(recorded: Record, holder: Holder | None) -> Phase:
    if holder is not None:
        return "stopping" if holder.command.startswith("vdisagg down") else "starting"
    return "up" if recorded.phase == "up" else "interrupted"


def _phase_problems(recorded: Record, phase: Phase, holder: Holder | None, now: float) -> list[str]:
    if holder is not None:
        return [f"{holder} is at work on it since {max(0.0, now - holder.since):.0f} s"]
    if phase == "interrupted":
        age = max(0.0, now - recorded.created)
        return [
            f"an up (pid {recorded.by_pid}) began {age:.0f} s ago and ended half-way; next: "
            f"`vdisagg up {recorded.plan.topology_file}` goes on from it, "
            f"`vdisagg down --name {recorded.plan.name}` ends it"
        ]
    return []


def _process_problems(plan: Plan, observations: dict[str, Observation], now: float) -> list[str]:
    logs = log_files(plan)
    problems = unreachable(plan, observations)
    for name, seen in observations.items():
        if seen.state == "running" and not seen.guard_alive:
            problems.append(f"{name}: its guard (pid {seen.guard_pid}) is gone; it runs on")
        elif seen.state == "running" and seen.lost:
            problems.append(f"{name}: {seen.how_lost}")
        if seen.stopped:
            problems.append(f"{name}: is stopped by a signal{_outlook(plan, seen)}")
        if seen.state == "never":
            problems.append(f"{name}: not started")
        elif seen.state not in ("running", "unreachable"):
            rest = f"; of its group live on: {list(seen.members)}" if seen.members else ""
            again = _restart(seen, now) or f"next: `vdisagg up {plan.topology_file}`"
            problems.append(f"{name}: {seen.how_it_ended}{rest}; its log: {logs[name]}; {again}")
    return problems


def _outlook(plan: Plan, seen: Observation) -> str:
    if plan.restart.policy == "never" or not seen.guard_alive:
        return ""
    return f"; its guard kills it after {plan.restart.stopped_s:g} s of that, and starts it again"


def _restart(seen: Observation, now: float) -> str:
    if seen.state != "restarting":
        return ""
    delay_s = max(0.0, (seen.restart_at or 0.0) - now)
    return f"its guard starts it again in {delay_s:.0f} s"


def _controller_problems(controller: ControllerStatus) -> list[str]:
    problems = [
        f"{instance.name}: {instance.state}{_because(instance.reason)}"
        for instance in controller.instances
        if instance.state != "ready"
    ]
    problems += [
        f"link {link.prefill}→{link.decode}: {link.state}{_because(link.reason)}"
        for link in controller.links
        if link.state != "warm"
    ]
    working = any(link.state == "warm" for link in controller.links)
    if controller.front_end == "attached" and not working:
        problems.append("no working link: /health answers 503")
    if controller.front_end == "gone":
        problems.append("front end: gone, and its requests with it; a new one will be attached")
    elif controller.front_end != "attached":
        problems.append(f"front end: {controller.front_end}")
    return problems


def _because(reason: str) -> str:
    return f", {reason}" if reason else ""


def _process_view(
    plan: Plan,
    process: Process,
    seen: Observation,
    controller: ControllerStatus | None,
    fault: str,
) -> ProcessView:
    """`fault`: what a tunnel says is wrong."""
    instance = _instance(controller, process.name)
    return ProcessView(
        name=process.name,
        kind=process.kind,
        node=process.node,
        state="connecting" if fault else _state(plan, process, seen, controller, instance),
        observation=seen,
        log=str(Path(process.directory) / record.LOG_FILE),
        since=instance.since if instance is not None else None,
        detail=fault or _detail(seen, instance),
        instance=instance,
    )


def _detail(seen: Observation, instance: InstanceStatus | None) -> str:
    if seen.state != "running":
        return seen.reason or seen.how_it_ended
    times = seen.generation - 1
    last = f", last after {seen.last_end}" if seen.last_end else ""
    restarts = f"restarted {times} {'times' if times > 1 else 'time'}{last}" if times else ""
    return "; ".join(filter(None, (instance.reason if instance is not None else "", restarts)))


def _manual_view(instance: Instance, controller: ControllerStatus | None) -> ProcessView:
    """An instance that somebody else starts: nothing is known but what it says to the controller."""
    known = _instance(controller, instance.name)
    state = known.state if known is not None else "unknown"
    return ProcessView(
        name=instance.name,
        kind=instance.role,
        node=instance.process.node,
        state="awaited" if state in ("planned", "launching") else state,
        observation=Observation("never"),
        log="",
        since=known.since if known is not None else None,
        detail="; ".join(filter(None, (known.reason if known else "", "is started by hand"))),
        instance=known,
    )


def _instance(controller: ControllerStatus | None, name: str) -> InstanceStatus | None:
    found = controller.instances if controller is not None else []
    return next((instance for instance in found if instance.name == name), None)


def _state(
    plan: Plan,
    process: Process,
    seen: Observation,
    controller: ControllerStatus | None,
    instance: InstanceStatus | None,
) -> str:
    """The process's own state decides; only of a running one the controller knows more."""
    if seen.state != "running":
        return seen.state
    if seen.stopped:
        return "stopped"
    if controller is None:
        return "silent" if process.kind == "controller" else "running"
    if process.name == plan.front_end.process.name:
        return "ready" if controller.front_end == "attached" else controller.front_end
    if process.kind == "controller":
        return "ready"
    return instance.state if instance is not None else "running"
