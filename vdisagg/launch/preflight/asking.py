"""What travels to a node for each step of preflight, and the answer that comes back.

Nothing is written on the node, so a full or read-only disk is a finding and not a failure.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vdisagg.errors import Failure
from vdisagg.launch import ports
from vdisagg.launch.preflight.node import environment, gpus, hub, machine, model, paths

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from vdisagg.launch.dialogue import Dialogue

LOOK: tuple[ModuleType, ...] = (ports, environment, gpus, hub, model, machine)
CALL: tuple[ModuleType, ...] = (paths,)
MODULES: dict[str, tuple[ModuleType, ...]] = {"look": LOOK, "listen": CALL, "dial": CALL}
"""By step: the modules that it needs, each after those that it imports. The last one does it."""


def ask(dialogue: Dialogue, job: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
    """What the node answers to a job.

    Raises NoPython, and Failure where it can't be asked or its answer is none.
    """
    *along, module = travelling(job)
    stdin = json.dumps(job)  # with a token, perhaps: those stand in no command line
    done = dialogue.run(module, job["step"], stdin=stdin, limit_s=limit_s, along=along)
    if done.code == 0:
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    raise Failure(f"the check there ended with exit code {done.code}: {said[:500]}")


def travelling(job: dict[str, Any]) -> Sequence[ModuleType]:
    """The modules for a job, the one that does it last."""
    wanted = job.get("model")
    spared = hub if wanted is None or model.is_path(wanted["name"]) else None
    return [module for module in MODULES[job["step"]] if module is not spared]
