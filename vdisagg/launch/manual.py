"""The command of an instance that somebody else starts."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from vdisagg.errors import UsageError

if TYPE_CHECKING:
    from vdisagg.plan.model import Plan, Process


def manual_process(plan: Plan, name: str) -> Process:
    """What is to be run for that instance.

    Raises UsageError where there is no such instance, or where `up` starts it.
    """
    instances = {instance.name: instance for instance in plan.instances}
    if name not in instances:
        near = get_close_matches(name, instances, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"no instance is named {name!r}; there are: {', '.join(instances)}{hint}")
    if not instances[name].manual:
        raise UsageError(
            f"{name} is started by `vdisagg up`; next: say `launch: manual` of it, or look at "
            "`vdisagg check FILE --commands`"
        )
    return instances[name].process
