"""The command of an instance that somebody else starts."""

from __future__ import annotations

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
        raise UsageError(f"no instance is named {name!r}; there are: {', '.join(instances)}")
    if not instances[name].manual:
        raise UsageError(
            f"{name} is started by `vdisagg up`; next: say `launch: manual` of it, or look at "
            "`vdisagg check FILE --commands`"
        )
    return instances[name].process
