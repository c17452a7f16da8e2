"""What a file may leave out because the rest of it, or its own name, says it. Works on plain values.

Runs before validation: values of a wrong kind are left as they are, for validation to report.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeGuard

OPTIONAL = (
    *("engine", "front_end", "controller"),
    *("heartbeat", "timeouts", "restart", "failover", "ports"),
)


def fill(value: dict[str, object], *, stem: str, folder: Path) -> None:
    """Fill in `name`, `served_model_name` and nodes, and make paths absolute, in place."""
    value.setdefault("name", stem.lower().replace("_", "-").replace(".", "-"))
    model, last = value.get("model"), ""
    if isinstance(model, str):
        value["model"] = model = absolute(model, folder)
        last = model.rstrip("/").rpartition("/")[2]
    # Of a model that is at fault comes no name: the fault is told once, where it stands.
    value.setdefault("served_model_name", last if last.strip() and min(last) >= " " else "model")
    for optional in OPTIONAL:
        if value.get(optional) is None:
            value[optional] = {}  # also `front_end:` with everything under it commented out
    _paths(value, folder)
    _nodes(value)


def absolute(text: str, folder: Path) -> str:
    """A path that starts with ./ ../ ~ or / made absolute; other text is a name, untouched."""
    if text.startswith("~"):
        return str(Path(text).expanduser())
    if text.startswith(("./", "../", "/")) or text in (".", ".."):
        return os.path.normpath(folder / text)
    return text


def _paths(value: dict[str, object], folder: Path) -> None:
    front_end = value.get("front_end")
    key = front_end.get("api_key") if isinstance(front_end, dict) else None
    if isinstance(key, dict) and _is_said(key.get("file")):
        key["file"] = os.path.normpath(folder / Path(key["file"]).expanduser())
    log_dir = value.get("log_dir")
    if _is_said(log_dir) and not log_dir.startswith("~/"):  # each node has its own home
        value["log_dir"] = os.path.normpath(folder / Path(log_dir).expanduser())
    nodes = value.get("nodes")
    for node in nodes.values() if isinstance(nodes, dict) else ():
        if not isinstance(node, dict) or node.get("ssh") is not None:
            continue  # paths of other machines mean what they mean there
        for name in ("python", "vllm", "work_dir"):
            if isinstance(node.get(name), str):
                node[name] = absolute(node[name], folder)


def _is_said(text: object) -> TypeGuard[str]:
    """Whether it can be a path; what is empty is left to validation, and is not the topology's folder."""
    return isinstance(text, str) and text.strip() != ""


def _nodes(value: dict[str, object]) -> None:
    nodes = value.get("nodes")
    if not isinstance(nodes, dict) or not nodes:
        return
    for name, node in nodes.items():
        if node is None:
            nodes[name] = {}  # `here:` alone is a node with defaults
    only = next(iter(nodes)) if len(nodes) == 1 else None
    for role in ("prefill", "decode"):
        side = value.get(role)
        if only and role in value and side is None:
            value[role] = side = {}
        if only and isinstance(side, dict):
            side.setdefault("node", only)
    local = next((name for name, node in nodes.items() if _is_local(node)), None)
    controller, front_end = _map(value, "controller"), _map(value, "front_end")
    if local is None and controller is not None and "node" not in controller:
        local = _this_machine(nodes)
    if controller is not None:
        controller.setdefault("node", local)
    if front_end is not None:
        front_end.setdefault("node", controller.get("node") if controller else local)


def _this_machine(nodes: dict[str, object]) -> str:
    """A node for the controller where the file has only others; its device fits them."""
    name = "here" if "here" not in nodes else "this-machine"
    devices = [node.get("device") if isinstance(node, dict) else None for node in nodes.values()]
    nodes[name] = {"device": "cpu"} if all(device == "cpu" for device in devices) else {}
    return name


def _is_local(node: object) -> bool:
    return isinstance(node, dict) and node.get("ssh") is None


def _map(value: dict[str, object], key: str) -> dict[str, object] | None:
    found = value.setdefault(key, {})
    return found if isinstance(found, dict) else None
