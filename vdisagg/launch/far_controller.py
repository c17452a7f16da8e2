"""The controller on another machine: what has to be there before it starts, and how it is asked.

Nothing of ours is installed on nodes, so the package travels into the process's own directory, with the
record; the directory is then the controller's state directory. ZeroMQ and msgspec are there, since
vLLM needs both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vdisagg.cluster import admin, leftovers, record
from vdisagg.errors import ControllerGone, Failure
from vdisagg.launch.background import in_background

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vdisagg.cluster.record import Record
    from vdisagg.launch.runner import RunnerFor
    from vdisagg.plan.model import Plan, Process

PACKAGE = "package"  # plan.processes puts it on the controller's PYTHONPATH
PARTS = ("*.py", "cluster/*.py", "control/*.py", "plan/*.py")
"""The modules that the controller imports, and their neighbours."""

ASK_LIMIT_S = 3.0


def is_far(plan: Plan) -> bool:
    """Whether the controller runs on a machine that is reached by SSH."""
    return any(node.name == plan.controller.node and node.ssh is not None for node in plan.nodes)


def files(recorded: Record) -> dict[str, str]:
    """What the controller's directory holds before its start: path below it → text."""
    root = Path(__file__).parents[1]
    modules = [path for pattern in PARTS for path in sorted(root.glob(pattern))]
    travelling = {f"{PACKAGE}/vdisagg/{p.relative_to(root)}": p.read_text() for p in modules}
    return {record.RECORD_FILE: record.encode(recorded).decode(), **travelling}


def forget(controllers: Iterable[Process], runner_for: RunnerFor) -> tuple[str, ...]:
    """Remove what controllers that have ended kept of their run in their own directories, if anything.

    A controller on this machine keeps it beside the record, and it goes with that. Returns what is left,
    and why.
    """
    left = []
    for process in controllers:
        try:
            runner_for(process.node).remove(process, leftovers.OF_A_RUN)
        except Failure as exc:
            what = "the journal, with the token ids of prompts and answers"
            left.append(f"{what}, in {process.directory} on {process.node}: {exc}")
    return tuple(left)


def ask(
    plan: Plan,
    state_directory: Path,
    runner_for: RunnerFor,
    answer: type[admin.Answer],
    op: str,
    *,
    after: int = 0,
    timeout_s: float,
) -> admin.Answer:
    """Send one request to the cluster's controller, wherever it is.

    Raises ControllerGone when nothing answers, or answers with a refusal, within `timeout_s` (ASK_LIMIT_S
    more over SSH).
    """
    if not is_far(plan):
        return admin.ask(state_directory, answer, op, after=after, timeout_s=timeout_s)
    node, process = plan.controller.node, plan.controller
    request = admin.request(op, after=after).decode()
    # A node that can't be reached is tried for longer than anybody wants to wait here.
    asked = in_background(lambda: runner_for(node).relay(process, request, timeout_s))
    limit_s = timeout_s + ASK_LIMIT_S
    try:
        line = asked.result(timeout=limit_s)
    except TimeoutError:
        raise ControllerGone(
            f"the controller on {node} does not answer: nothing has come from {node} within {limit_s:g} s; "
            "next: see that the machine is up and the network there; `vdisagg status` shows the other nodes"
        ) from None
    except Failure as exc:
        raise ControllerGone(f"the controller on {node} does not answer: {exc}") from exc
    return admin.parse(line.encode(), answer, op)
