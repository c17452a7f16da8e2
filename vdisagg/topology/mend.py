"""A faulty file made whole, so that what is right in it can still be checked.

What is wrong is left out; where something must stand, a harmless stand-in does. Faults that the
stand-ins cause are at paths that are at fault already, and are dropped there (load.py).
"""

from __future__ import annotations

import copy

from vdisagg.topology.fault import Fault


def mended(value: dict[str, object], wrong: list[Fault]) -> dict[str, object]:
    """A copy of `value` without everything that is at fault, and with all that a file needs."""
    result = copy.deepcopy(value)
    for fault in wrong:
        _leave_out(result, fault)
    result.setdefault("name", "unnamed")
    result.setdefault("model", "unnamed")
    result.setdefault("served_model_name", "unnamed")
    nodes = result.setdefault("nodes", {})
    for fault in wrong:
        # A node that was said stays known, or everything that names it would be at fault too.
        if isinstance(nodes, dict) and len(fault.path) > 1 and fault.path[0] == "nodes":
            nodes.setdefault(str(fault.path[1]), {})
    nodes_unknown = nodes == {}
    if nodes_unknown:
        result["nodes"] = nodes = {"unnamed": {}}
    for role in ("prefill", "decode"):
        if role not in result and isinstance(nodes, dict):
            result[role] = {"node": next(iter(nodes))}
    if nodes_unknown:
        for part in ("prefill", "decode", "front_end", "controller"):
            _place_all(result.setdefault(part, {}))
    return result


def _place_all(part: object) -> None:
    """Put a part, and all that it lists, on the stand-in for nodes that the file does not tell."""
    if isinstance(part, dict):
        part["node"] = "unnamed"
        listed = part.get("instances")
        for instance in listed if isinstance(listed, list) else ():
            _place_all(instance)


def _leave_out(value: dict[str, object], fault: Fault) -> None:
    holder: object = value
    for part in fault.path[:-1]:
        if isinstance(holder, dict):
            holder = holder.get(str(part))
        elif isinstance(holder, list) and isinstance(part, int) and part < len(holder):
            holder = holder[part]
        else:
            return
    if not fault.path:
        return
    last = fault.path[-1]
    if isinstance(holder, dict):
        holder.pop(str(last), None)
    elif isinstance(holder, list) and isinstance(last, int) and last < len(holder):
        holder[last] = {}  # its neighbours keep their places
