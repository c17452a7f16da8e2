"""The engines that a topology asks for: names, inherited flags and environment, GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vdisagg.topology import flags
from vdisagg.topology.fault import Fault, KeyPath
from vdisagg.topology.model import InstanceSpec, Side, Topology

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")


@dataclass(frozen=True)
class Engine:
    """One engine with everything that it inherits. `path` is where the file asks for it."""

    name: str
    role: Role
    node: str
    path: KeyPath
    args: dict[str, object]
    """Merged, by `flags.flag_of` names."""
    env: dict[str, str]
    own_gpus: tuple[int, ...] | None
    manual: bool = False
    """Whether somebody else starts it."""

    @property
    def world_size(self) -> int:
        return flags.world_size(self.args)


def engines(topology: Topology) -> tuple[Engine, ...]:
    """All engines: p0, p1, … then d0, d1, …"""
    return tuple(engine for role in ROLES for engine in _side(topology, role))


def side_of(topology: Topology, role: Role) -> Side:
    return topology.prefill if role == "prefill" else topology.decode


def _side(topology: Topology, role: Role) -> list[Engine]:
    side = side_of(topology, role)
    listed = side.instances is not None
    specs = side.instances or (InstanceSpec.model_construct(),) * side.count
    found = []
    for index, spec in enumerate(specs):
        node = spec.node or side.node or ""
        on = topology.nodes.get(node)
        levels = (topology.engine, side, spec)
        env = [on.env if on else {}, *(level.env for level in levels)]
        found.append(
            Engine(
                name=spec.name or f"{role[0]}{index}",
                role=role,
                node=node,
                path=(role, "instances", index) if listed else (role,),
                args=flags.merge(level.args for level in levels),
                env=merge_env(*env),
                own_gpus=spec.gpus,
                manual=(spec.launch or side.launch) == "manual",
            )
        )
    return found


def merge_env(*levels: dict[str, str | None]) -> dict[str, str]:
    """Variables of all levels; a later level wins, and its null removes."""
    merged: dict[str, str | None] = {}
    for level in levels:
        merged |= level
    return {name: value for name, value in merged.items() if value is not None}


def assign_gpus(topology: Topology) -> tuple[dict[str, tuple[int, ...]], list[Fault]]:
    """GPU indices by engine name, and everything that is wrong with them.

    Named GPUs first; the other engines take what is free on their node, in order. Engines on
    nodes with `device: cpu`, or on nodes that do not exist, get none. Where all engines of a node
    are started by somebody else, the node need not say its GPUs: that somebody gives them out.
    """
    every = engines(topology)
    given: dict[str, tuple[int, ...]] = {}
    faults: list[Fault] = []
    claims = [*_pools(topology, every, faults), *_own(every, faults)]
    for node_name, node in topology.nodes.items():
        here = [engine for engine in every if engine.node == node_name]
        mine = [claim for claim in claims if claim.engine.node == node_name]
        if node.device == "cpu":
            faults += [
                Fault(
                    claim.path,
                    f"node {node_name} has `device: cpu` and no GPUs",
                    "leave `gpus` out",
                )
                for claim in mine
            ]
        elif node.gpus is None and all(engine.manual for engine in here):
            given |= {claim.engine.name: claim.gpus for claim in mine}
        elif node.gpus is None:
            what = f"has no `gpus`, and {_names(here)} should run there"
            faults.append(Fault(("nodes", node_name), what, "say `gpus: N`, or `device: cpu`"))
        elif here:
            faults += _on_node(node_name, node.gpus or (), here, mine, given)
    return given, _once(faults)


@dataclass(frozen=True)
class _Claim:
    """GPUs that the file names for an engine, and where it names them."""

    engine: Engine
    gpus: tuple[int, ...]
    path: KeyPath


def _own(every: tuple[Engine, ...], faults: list[Fault]) -> list[_Claim]:
    claims = []
    for engine in every:
        if engine.own_gpus is None:
            continue
        path = (*engine.path, "gpus")
        claims.append(_Claim(engine, engine.own_gpus, path))
        if len(engine.own_gpus) != engine.world_size:
            faults.append(Fault(path, _count_is_wrong([engine], engine.own_gpus), _FOLLOWS))
    return claims


def _pools(topology: Topology, every: tuple[Engine, ...], faults: list[Fault]) -> list[_Claim]:
    """A side's `gpus`, shared out in order among its engines on each node."""
    claims = []
    for role in ROLES:
        pool = side_of(topology, role).gpus
        if pool is None:
            continue
        sharing = [e for e in every if e.role == role and e.own_gpus is None]
        for node in dict.fromkeys(engine.node for engine in sharing):
            here = [engine for engine in sharing if engine.node == node]
            path = (role, "gpus")
            if len(pool) != sum(engine.world_size for engine in here):
                faults.append(Fault(path, _count_is_wrong(here, pool), _FOLLOWS))
            start = 0
            for engine in here:
                claims.append(_Claim(engine, pool[start : start + engine.world_size], path))
                start += engine.world_size
    return claims


_FOLLOWS = "name as many as tensor_parallel_size × pipeline_parallel_size says"


def _count_is_wrong(some: list[Engine], gpus: tuple[int, ...]) -> str:
    need = sum(engine.world_size for engine in some)
    verb = "takes" if len(some) == 1 else "take"
    return f"{_names(some)} {verb} {_gpus(need)} on node {some[0].node}; got {len(gpus)} ({_span(gpus)})"


def _on_node(
    name: str,
    has: tuple[int, ...],
    here: list[Engine],
    claims: list[_Claim],
    given: dict[str, tuple[int, ...]],
) -> list[Fault]:
    """Give out one node's GPUs into `given`; returns what is wrong."""
    faults = []
    owner: dict[int, str] = {}
    for claim in claims:
        for gpu in claim.gpus:
            if gpu not in has:
                what = f"GPU {gpu} of {claim.engine.name} is not on node {name}"
                faults.append(Fault(claim.path, what, f"it has {_span(has)}"))
            elif gpu in owner:
                what = (
                    f"GPU {gpu} of node {name} is given to {owner[gpu]} and to {claim.engine.name}"
                )
                faults.append(
                    Fault(claim.path, what, f"give each engine its own; it has {_span(has)}")
                )
            owner.setdefault(gpu, claim.engine.name)
        given[claim.engine.name] = claim.gpus
    for engine in here:
        if engine.name in given:
            continue
        free = [gpu for gpu in has if gpu not in owner]
        if len(free) < engine.world_size:
            what = f"{engine.name} needs {_gpus(engine.world_size)} on node {name}, where {_left(free)}"
            faults.append(Fault(engine.path, what, f"it has {_span(has)}"))
            continue
        given[engine.name] = tuple(free[: engine.world_size])
        owner |= dict.fromkeys(given[engine.name], engine.name)
    return faults


def _once(faults: list[Fault]) -> list[Fault]:
    return list(dict.fromkeys(faults))


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _left(free: list[int]) -> str:
    return f"{len(free)} {'is' if len(free) == 1 else 'are'} left"


def _names(some: list[Engine]) -> str:
    names = [engine.name for engine in some]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _span(gpus: tuple[int, ...]) -> str:
    """`0-3` for a run, `0, 2, 5` otherwise, `none` for nothing."""
    if len(gpus) > 2 and gpus == tuple(range(gpus[0], gpus[-1] + 1)):
        return f"GPUs {gpus[0]}-{gpus[-1]}"
    if not gpus:
        return "no GPUs"
    return f"GPU {gpus[0]}" if len(gpus) == 1 else "GPUs " + ", ".join(map(str, gpus))
