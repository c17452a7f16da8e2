"""The same machines, otherwise divided between prefill and decode: what `bench --ratios` tries out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vdisagg.errors import UsageError
from vdisagg.topology.engines import assign_gpus, engines, side_of
from vdisagg.topology.model import InstanceSpec, Side, Topology


@dataclass(frozen=True)
class Division:
    """So many engines of each role."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"


def parse_divisions(text: str) -> list[Division]:
    """`1:3,2:2` as divisions, in that order and each once. Raises UsageError."""
    found: dict[Division, None] = {}
    for word in text.split(","):
        prefill, colon, decode = word.strip().partition(":")
        if not (colon and prefill.isdecimal() and decode.isdecimal()):
            raise UsageError(
                f"--ratios {text}: {word.strip()!r} is no P:D; say for example 1:3,2:2"
            )
        if not (int(prefill) and int(decode)):
            raise UsageError(f"--ratios {text}: {word.strip()}: each role needs an engine")
        found[Division(int(prefill), int(decode))] = None
    return list(found)


def recorded(resolved: Mapping[str, Any]) -> Topology:
    """The topology that a plan was made of, out of the plan: there each side has its `count`, said or not,
    which a file may not have beside `instances`."""
    sides = {name: dict(resolved[name]) for name in ("prefill", "decode")}
    for side in sides.values():
        if side["instances"] is not None:
            del side["count"]
    return Topology.model_validate_json(json.dumps({**resolved, **sides}))


def division_of(topology: Topology) -> Division:
    """How its engines are divided now."""
    roles = [engine.role for engine in engines(topology)]
    return Division(roles.count("prefill"), roles.count("decode"))


def divided(topology: Topology, division: Division) -> Topology:
    """The topology with its engines' places (node and GPUs) given out anew: the first `prefill` of
    them to prefill engines, the rest to decode engines, each with the flags of its new role.

    Raises UsageError where places can't be exchanged: another number of them, engines of different
    sizes, engines with flags of their own, or engines that somebody else starts.
    """
    every = engines(topology)
    total = division.prefill + division.decode
    if total != len(every):
        raise UsageError(
            f"--ratios {division}: the cluster has {len(every)} engines, this names {total}; "
            f"say ratios that add up to {len(every)}"
        )
    for engine in every:
        if engine.manual:
            raise _not_exchangeable(engine.name, "is started by hand (`launch: manual`)")
        if engine.world_size != every[0].world_size:
            raise _not_exchangeable(
                engine.name,
                f"takes {engine.world_size} GPUs and {every[0].name} takes {every[0].world_size}",
            )
    for role in ("prefill", "decode"):
        for index, spec in enumerate(side_of(topology, role).instances or ()):
            if spec.args or spec.env:
                name = spec.name or f"{role[0]}{index}"
                raise _not_exchangeable(name, "has `args` or `env` of its own")
    gpus, _ = assign_gpus(topology)
    places = [InstanceSpec(node=one.node, gpus=gpus.get(one.name)) for one in every]
    return topology.model_copy(
        update={
            "prefill": _side(topology.prefill, places[: division.prefill]),
            "decode": _side(topology.decode, places[division.prefill :]),
        }
    )


def _side(side: Side, places: list[InstanceSpec]) -> Side:
    return Side(args=side.args, env=side.env, instances=tuple(places))


def _not_exchangeable(name: str, why: str) -> UsageError:
    return UsageError(
        f"--ratios: {name} {why}, so prefill and decode can't trade places; "
        "next: bench each topology by itself and use `vdisagg bench compare`"
    )
