"""What no single map of the file can know: nodes exist, GPUs suffice, flags are the user's to set."""

from __future__ import annotations

import difflib
import ipaddress

from vdisagg.topology import flags
from vdisagg.topology.engines import ROLES, assign_gpus, engines, side_of
from vdisagg.topology.fault import Fault, KeyPath
from vdisagg.topology.model import Topology

CONNECTORS = ("nixl",)
_LATER = ("mooncake", "mooncake_store", "lmcache", "example", "multi")


def check(topology: Topology, *, gpus: bool = True) -> list[Fault]:
    """All faults of a topology whose shape is right. Without `gpus`, GPUs are not looked at."""
    return [
        *_connector(topology),
        *_nodes(topology),
        *_node_references(topology),
        *_places(topology),
        *_out_of_reach(topology),
        *_flags(topology),
        *_environment(topology),
        *_names(topology),
        *(assign_gpus(topology)[1] if gpus else ()),
    ]


def _connector(topology: Topology) -> list[Fault]:
    name = topology.connector
    if name in CONNECTORS:
        return []
    offered = f"say {' or '.join(CONNECTORS)}"
    if name in _LATER:
        return [Fault(("connector",), f"{name} is not offered yet", offered)]
    return [Fault(("connector",), f"there is no connector {name!r}", offered)]


def _nodes(topology: Topology) -> list[Fault]:
    faults = []
    with_gpus = [name for name, node in topology.nodes.items() if node.local and node.gpus]
    for name in with_gpus[1:]:
        what = f"is this machine, and so is {with_gpus[0]}: their GPUs are the same"
        faults.append(Fault(("nodes", name), what, "keep one, or say `ssh:`"))
    return faults


def _places(topology: Topology) -> list[Fault]:
    """Where controller and front end cannot be."""
    faults: list[Fault] = []
    if not _local(topology, topology.controller.node) and topology.control == "tunnel":
        what = f"is {topology.controller.node}, and tunnels begin on this machine"
        next_ = "leave it out: the controller runs here; or say `control: direct`"
        return [Fault(("controller", "node"), what, next_)]
    front_end = topology.front_end
    if _local(topology, front_end.node):
        return faults
    if topology.control == "tunnel":
        what = f"is {front_end.node}, and `control: tunnel` carries engines only"
        next_ = "leave it out: the front end runs here; or say `control: direct`"
        faults.append(Fault(("front_end", "node"), what, next_))
    if front_end.host is not None and _is_loopback(front_end.host):
        what = f"is a loopback address of {front_end.node}, where only that node reaches it"
        next_ = "leave it out for the node's address, or say 0.0.0.0"
        faults.append(Fault(("front_end", "host"), what, next_))
    return faults


def _out_of_reach(topology: Topology) -> list[Fault]:
    """Nodes that no login leads to, so that no tunnel does either, though their engines, all started by
    somebody else, may be on another machine."""
    if topology.control == "direct":
        return []
    every = engines(topology)
    ours = {topology.controller.node, topology.front_end.node}
    ours |= {engine.node for engine in every if not engine.manual}
    faults = []
    for name, node in topology.nodes.items():
        there = ", ".join(engine.name for engine in every if engine.node == name)
        if node.local and there and name not in ours:
            what = f"has no `ssh:`, so no tunnel leads there, and {there} could not dial in"
            controller = topology.controller.node
            next_ = (
                f"say `ssh:`, or `control: direct` and `data_ip:` in nodes.{controller}; if it is this "
                f"machine, let {there} be on {controller}"
            )
            faults.append(Fault(("nodes", name), what, next_))
    return faults


def _local(topology: Topology, name: str | None) -> bool:
    """Also of a node that does not exist: that is told elsewhere."""
    node = topology.nodes.get(name or "")
    return node is None or node.local


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _node_references(topology: Topology) -> list[Fault]:
    faults = []
    wanted: dict[KeyPath, str | None] = {
        ("front_end", "node"): topology.front_end.node,
        ("controller", "node"): topology.controller.node,
    }
    for role in ROLES:
        side = side_of(topology, role)
        if side.node is not None or side.instances is None:
            wanted[(role, "node")] = side.node
        for index, spec in enumerate(side.instances or ()):
            if spec.node is not None or side.node is None:
                wanted[(role, "instances", index, "node")] = spec.node
    known = ", ".join(topology.nodes)
    for path, name in wanted.items():
        if name is None:
            faults.append(Fault(path, "is missing", f"say which node: {known}"))
        elif name not in topology.nodes:
            near = difflib.get_close_matches(name, topology.nodes, n=1, cutoff=0.6)
            next_ = f"did you mean {near[0]}?" if near else f"the file has {known}"
            faults.append(Fault(path, f"there is no node {name!r}", next_))
    return faults


def _flags(topology: Topology) -> list[Fault]:
    faults = flags.check(topology.engine.args, ("engine", "args"), "engine")
    for role in ROLES:
        side = side_of(topology, role)
        faults += flags.check(side.args, (role, "args"), "engine")
        for index, spec in enumerate(side.instances or ()):
            faults += flags.check(spec.args, (role, "instances", index, "args"), "engine")
    return faults + flags.check(topology.front_end.args, ("front_end", "args"), "front_end")


def _environment(topology: Topology) -> list[Fault]:
    maps: dict[KeyPath, dict[str, str | None]] = {
        ("engine", "env"): topology.engine.env,
        ("front_end", "env"): topology.front_end.env,
    }
    for name, node in topology.nodes.items():
        maps["nodes", name, "env"] = node.env
    for role in ROLES:
        side = side_of(topology, role)
        maps[role, "env"] = side.env
        for index, spec in enumerate(side.instances or ()):
            maps[role, "instances", index, "env"] = spec.env
    return [fault for path, env in maps.items() for fault in flags.check_env(env, path)]


def _names(topology: Topology) -> list[Fault]:
    faults = []
    seen: set[str] = set()
    for engine in engines(topology):
        if engine.name in seen:
            what = f"two engines are called {engine.name}"
            faults.append(Fault((*engine.path, "name"), what, "give each its own name"))
        seen.add(engine.name)
    return faults
