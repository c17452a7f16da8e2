"""Looks at what a cluster says of itself: its controller, and its front end's health."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vdisagg.cluster.admin import ControllerStatus
from vdisagg.cluster.record import LOG_FILE
from vdisagg.errors import ControllerGone
from vdisagg.launch import far_controller

if TYPE_CHECKING:
    from vdisagg.launch.runner import RunnerFor
    from vdisagg.plan.model import Plan

ADMIN_LIMIT_S = 2.0
HEALTH_LIMIT_S = 2.0


def log_files(plan: Plan) -> dict[str, str]:
    """Where each process's log is, on its node."""
    return {p.name: str(Path(p.directory) / LOG_FILE) for p in plan.processes()}


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


def is_healthy(url: str, *, timeout_s: float = HEALTH_LIMIT_S) -> bool:
    """Whether GET /health is answered with 200."""
    import http.client  # here, as `status` has no time for it

    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=timeout_s)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
