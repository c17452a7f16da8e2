"""Looks at a cluster: its processes through the runners, its controller, its front end's health."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vdisagg.cluster.admin import ControllerStatus, ask
from vdisagg.cluster.record import LOG_FILE
from vdisagg.errors import ControllerGone

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdisagg.cluster.snapshot import Observation
    from vdisagg.launch.runner import Runner
    from vdisagg.plan.model import Plan

ADMIN_LIMIT_S = 2.0
HEALTH_LIMIT_S = 2.0


def log_files(plan: Plan) -> dict[str, str]:
    """Where each process's log is, on its node."""
    return {p.name: str(Path(p.directory) / LOG_FILE) for p in plan.processes()}


def observe_all(plan: Plan, runner_for: Callable[[str], Runner]) -> dict[str, Observation]:
    """Every process of the plan, by name, in launch order."""
    return {p.name: runner_for(p.node).observe(p) for p in plan.processes()}


def ask_controller(
    state_directory: Path, *, timeout_s: float = ADMIN_LIMIT_S
) -> tuple[ControllerStatus | None, str]:
    """The controller's status, or None and why there is none."""
    try:
        return ask(state_directory, ControllerStatus, "status", timeout_s=timeout_s), ""
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
