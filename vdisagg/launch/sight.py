"""Looks at a cluster: its processes through the runners, its controller, its front end's health."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vdisagg.cluster.admin import ControllerStatus
from vdisagg.cluster.record import LOG_FILE
from vdisagg.cluster.snapshot import Observation
from vdisagg.errors import ControllerGone, Failure
from vdisagg.launch import far_controller
from vdisagg.launch.background import in_background

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vdisagg.launch.runner import RunnerFor
    from vdisagg.plan.model import Plan, Process

ADMIN_LIMIT_S = 2.0
HEALTH_LIMIT_S = 2.0
STRETCH_S = 1.0
LOOK_LIMIT_S = 10.0  # for a node that is busy with loading; one that is there answers in 0.2 s


def log_files(plan: Plan) -> dict[str, str]:
    """Where each process's log is, on its node."""
    return {p.name: str(Path(p.directory) / LOG_FILE) for p in plan.processes()}


def by_node(processes: Iterable[Process]) -> dict[str, list[Process]]:
    """The same processes, by the name of their node, in their order."""
    found: dict[str, list[Process]] = {}
    for process in processes:
        found.setdefault(process.node, []).append(process)
    return found


class Lookout:
    """Looks at all nodes of a plan at once, again and again; one that is slow is not asked twice."""

    def __init__(self, plan: Plan, runner_for: RunnerFor) -> None:
        self._processes = plan.processes()
        self._by_node = by_node(self._processes)
        self._runner_for = runner_for
        self._asked: dict[str, Future[list[Observation]]] = {}

    def look(self, limit_s: float = LOOK_LIMIT_S) -> dict[str, Observation]:
        """Every process of the plan, by name, in launch order; `unreachable` where its node fails to
        answer within the limit. That is stretched while answers of others still come in: then it is
        we who are slow, logging in to many nodes at once."""
        for node in self._by_node.keys() - self._asked.keys():
            self._asked[node] = in_background(partial(self._ask, node))
        _wait(list(self._asked.values()), limit_s)
        seen: dict[str, Observation] = {}
        for node, processes in self._by_node.items():
            for process, observation in zip(processes, self._answer(node, limit_s), strict=True):
                seen[process.name] = observation
        return {process.name: seen[process.name] for process in self._processes}

    def _ask(self, node: str) -> list[Observation]:
        return self._runner_for(node).observe_all(self._by_node[node])

    def _answer(self, node: str, limit_s: float) -> list[Observation]:
        asked = self._asked[node]
        reason = f"{node}: no answer within {limit_s:g} s"
        if asked.done():
            del self._asked[node]
            try:
                return asked.result()
            except Failure as exc:
                reason = str(exc)
        return [Observation("unreachable", reason=reason)] * len(self._by_node[node])


def _wait(asked: list[Future[list[Observation]]], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    waiting = set(asked)
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        done, waiting = wait(waiting, timeout=left_s, return_when=FIRST_COMPLETED)
        if done:
            deadline = max(deadline, time.monotonic() + STRETCH_S)


def observe_all(
    plan: Plan, runner_for: RunnerFor, *, limit_s: float = LOOK_LIMIT_S
) -> dict[str, Observation]:
    """One look at every process of the plan, by name, in launch order."""
    return Lookout(plan, runner_for).look(limit_s)


def unreachable(plan: Plan, observations: Mapping[str, Observation]) -> list[str]:
    """One line for each node that did not answer: what of the plan is there, and why."""
    lines = []
    for node, processes in by_node(plan.processes()).items():
        lost = [p.name for p in processes if observations[p.name].state == "unreachable"]
        if lost:
            reason = observations[lost[0]].reason
            lines.append(f"{', '.join(lost)} on {node}: unreachable: {reason}")
    return lines


def ask_controller(
    plan: Plan, state_directory: Path, runner_for: RunnerFor, *, timeout_s: float = ADMIN_LIMIT_S
) -> tuple[ControllerStatus | None, str]:
    """The controller's status, or None and why there is none."""
    try:
        answer = far_controller.ask(
            plan, state_directory, runner_for, ControllerStatus, "status", timeout_s=timeout_s
        )
        return answer, ""
    except ControllerGone as exc:
        return None, str(exc)


def is_healthy(url: str) -> bool:
    """Whether GET /health is answered with 200."""
    import http.client  # here, as `status` has no time for it

    target = urlsplit(url)
    connection = http.client.HTTPConnection(
        target.hostname or "", target.port, timeout=HEALTH_LIMIT_S
    )
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
