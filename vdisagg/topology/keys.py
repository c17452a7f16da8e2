"""Which keys stand where in a topology file, read off the models; advice for a key that stands wrong."""

from __future__ import annotations

import difflib
import typing
from functools import cache

from pydantic import BaseModel

from vdisagg.topology import flags, vllm_flags
from vdisagg.topology.fault import KeyPath
from vdisagg.topology.model import Topology

Place = tuple[str, ...]
"""A key path with `*` for the name of a node and for a place in a list."""


@cache
def places() -> dict[Place, tuple[str, ...]]:
    """The keys of every map in the file that has fixed keys."""
    found: dict[Place, tuple[str, ...]] = {}
    _walk(Topology, (), found)
    return found


def _walk(model: type[BaseModel], place: Place, found: dict[Place, tuple[str, ...]]) -> None:
    found[place] = tuple(model.model_fields)
    for name, field in model.model_fields.items():
        for inner, many in _models(field.annotation, many=False):
            _walk(inner, (*place, name, "*") if many else (*place, name), found)


def _models(annotation: object, *, many: bool) -> list[tuple[type[BaseModel], bool]]:
    """The models in a type, and whether a map or a list stands around them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(annotation, many)]
    many = many or typing.get_origin(annotation) in (dict, tuple)
    arguments = typing.get_args(annotation)
    return [model for argument in arguments for model in _models(argument, many=many)]


def advice(path: KeyPath) -> str:
    """What to do about the unknown key at `path`."""
    key = str(path[-1])
    near = nearest(path)
    if near:
        return f"did you mean `{near}`?"
    elsewhere = _elsewhere(path)
    if elsewhere:
        return f"`{key}` stands under {' or '.join(elsewhere)}"
    flag = flags.flag_of(key)
    known = key if flag in vllm_flags.ALL else flags.nearest(flag)
    if known:
        here = _place(path[:-1])
        owner = (
            f"`{_spell((*here, 'args'))}`" if "args" in places().get(here, ()) else "`engine.args`"
        )
        return f"`{known}` is a flag of vLLM: put it under {owner}"
    return f"valid keys here: {', '.join(places().get(_place(path[:-1]), ()))}"


def nearest(path: KeyPath) -> str:
    """The valid key in the same map that the key at `path` most looks like, or ""."""
    key = str(path[-1]).replace("-", "_").lower()
    valid = places().get(_place(path[:-1]), ())
    if _elsewhere(path):
        return ""
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.7)
    return near[0] if near else ""


def _elsewhere(path: KeyPath) -> list[str]:
    """Other maps that have this very key, nearest first: one level up or down, then the rest."""
    key, here = str(path[-1]), _place(path[:-1])
    found = [place for place, valid in places().items() if key in valid and place != here]
    related = [
        place for place in found if place == here[: len(place)] or here == place[: len(here)]
    ]
    chosen = sorted(related or found, key=lambda place: abs(len(place) - len(here)))
    closest = [p for p in chosen if abs(len(p) - len(here)) == abs(len(chosen[0]) - len(here))]
    return [f"`{_spell(place)}`" if place else "the top of the file" for place in closest[:4]]


def _place(path: KeyPath) -> Place:
    text = tuple("*" if isinstance(part, int) else part for part in path)
    return (text[0], "*", *text[2:]) if len(text) > 1 and text[0] == "nodes" else text


def _spell(place: Place) -> str:
    return ".".join(place).replace("nodes.*", "nodes.NAME").replace(".*", "[]")
