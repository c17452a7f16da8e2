"""Which addresses a topology leaves to be looked up before it is planned. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vdisagg.errors import UsageError
from vdisagg.plan.site import Here
from vdisagg.topology.engines import engines
from vdisagg.topology.model import Topology


@dataclass(frozen=True)
class LookUp:
    """One node whose data address is not written in the topology."""

    node: str
    interface: str | None
    """The interface whose address is wanted; None: the address at which SSH reaches the node."""


def look_ups(topology: Topology) -> tuple[LookUp, ...]:
    """Nodes that a process of the cluster runs on, and whose address has to be found out."""
    return tuple(
        LookUp(name, node.interface)
        for name, node in topology.nodes.items()
        if name in used_nodes(topology)
        and node.data_ip is None
        and (node.interface is not None or not node.local)
    )


def nodes_that_dial(topology: Topology) -> tuple[str, ...]:
    """Nodes of other machines with processes that reach this one, or are reached from it."""
    used = used_nodes(topology)
    return tuple(name for name, node in topology.nodes.items() if name in used and not node.local)


def used_nodes(topology: Topology) -> frozenset[str]:
    """Nodes that a process of the cluster runs on."""
    parts = (topology.front_end.node or "", topology.controller.node or "")
    return frozenset((*parts, *(engine.node for engine in engines(topology))))


def refuse_ambiguous(topology: Topology, here: Here) -> None:
    """Raises UsageError when engines on this machine would need several addresses at once.

    The controller listens on each; an engine has one for its peers.
    """
    found = sorted(set(here.routes.values()))
    if len(found) < 2:
        return
    for engine in engines(topology):
        node = topology.nodes[engine.node]
        if node.local and node.data_ip is None and node.interface is None:
            ways = ", ".join(f"{name} reaches {address}" for name, address in here.routes.items())
            raise UsageError(
                f"nodes.{engine.node}: {engine.name} runs on this machine, which other nodes reach "
                f"at several addresses ({ways}); next: say its `data_ip:`"
            )
