"""`bench --ratios`: the same places, otherwise divided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vdisagg.errors import UsageError
from vdisagg.topology.divide import Division, divided, division_of, parse_divisions, recorded
from vdisagg.topology.engines import assign_gpus, engines

if TYPE_CHECKING:
    from topology.conftest import Load

GPUS = """\
model: some/model
nodes:
  a: {gpus: 2}
  b: {gpus: 2, ssh: b.example}
engine: {args: {max_model_len: 512}}
prefill: {node: a, count: 2, args: {max_num_seqs: 4}}
decode: {node: b, count: 2, args: {max_num_seqs: 64}}
"""
CPU = """\
model: some/model
nodes:
  here: {device: cpu}
prefill: {node: here}
decode: {node: here, count: 2}
"""


def test_places_keep_their_gpus_and_take_their_new_roles_flags(loaded: Load) -> None:
    new = divided(loaded(GPUS), Division(1, 3))
    found = [(e.name, e.node, e.args["max-num-seqs"]) for e in engines(new)]
    assert found == [("p0", "a", 4), ("d0", "a", 64), ("d1", "b", 64), ("d2", "b", 64)]
    gpus, faults = assign_gpus(new)
    assert faults == []
    assert gpus == {"p0": (0,), "d0": (1,), "d1": (0,), "d2": (1,)}


def test_engines_without_gpus_are_divided_too(loaded: Load) -> None:
    assert division_of(loaded(CPU)) == Division(1, 2)
    new = divided(loaded(CPU), Division(2, 1))
    assert division_of(new) == Division(2, 1)
    assert [e.node for e in engines(new)] == ["here"] * 3


LISTED = GPUS.replace("count: 2, args: {max_num_seqs: 4}", "instances: [{gpus: [1]}, {name: x}]")


@pytest.mark.parametrize("text", [GPUS, CPU, LISTED])
def test_the_topology_of_a_plan_is_the_one_that_it_was_made_of(loaded: Load, text: str) -> None:
    topology = loaded(text)
    again = recorded(topology.model_dump(mode="json"))
    assert again.model_dump() == topology.model_dump()
    assert division_of(again) == division_of(topology)


def test_all_else_stays_as_it_was(loaded: Load) -> None:
    before = loaded(GPUS)
    changed = before.model_dump(exclude={"prefill", "decode"})
    assert divided(before, Division(3, 1)).model_dump(exclude={"prefill", "decode"}) == changed


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", "the cluster has 4 engines, this names 3; say ratios that add up to 4"),
        ("{max_num_seqs: 64}", "{tensor_parallel_size: 2}", "d0 takes 2 GPUs and p0 takes 1"),
        ("decode: {node: b,", "decode: {node: b, launch: manual,", "d0 is started by hand"),
        (
            "decode: {node: b, count: 2,",
            "decode: {instances: [{node: b}, {node: b, env: {A: x}}],",
            "d1 has `args` or `env` of its own",
        ),
    ],
)
def test_places_that_cant_be_exchanged_are_named(
    loaded: Load, old: str, new: str, said: str
) -> None:
    topology = loaded(GPUS.replace("b: {gpus: 2,", "b: {gpus: 4,").replace(old, new))
    with pytest.raises(UsageError, match=r"^--ratios") as caught:
        divided(topology, Division(1, 2 if not old else 3))
    assert said in str(caught.value)


def test_ratios_are_read_in_order_and_once() -> None:
    assert parse_divisions("1:3, 2:2,1:3") == [Division(1, 3), Division(2, 2)]


@pytest.mark.parametrize("text", ["", "1", "1:", "a:1", "1:2:3", "0:4", "1:-1", "1:3,"])
def test_ratios_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ratios"):
        parse_divisions(text)
