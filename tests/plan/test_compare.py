"""What changed is said in the words of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vdisagg.plan.compare import differences

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdisagg.plan.model import Plan

BASE = """\
model: /m
nodes: {here: {device: cpu}}
engine: {args: {max_model_len: 1024}}
prefill: {}
decode: {}
"""


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("decode: {}", "decode: {}", []),
        ("decode: {}", "decode: {count: 2}", ["decode.count: 1 → 2"]),
        ("1024", "2048", ["engine.args.max_model_len: 1024 → 2048"]),
        (
            "{max_model_len: 1024}",
            "{dtype: float32}",
            [
                "engine.args.max_model_len: 1024 → (not set)",
                "engine.args.dtype: (not set) → float32",
            ],
        ),
        (
            "decode: {}",
            "decode: {instances: [{}, {}]}",
            # Every field of a list that was not there is said as one value.
            None,
        ),
        ("model: /m", "model: /n", ["model: /m → /n", "served_model_name: m → n"]),
    ],
)
def test_each_difference_is_one_line(
    planned: Callable[..., Plan], old: str, new: str, lines: list[str] | None
) -> None:
    before, after = planned(BASE).topology, planned(BASE.replace(old, new)).topology
    found = differences(before, after)
    if lines is None:
        assert [line.split(":")[0] for line in found] == ["decode.instances"]
    else:
        assert found == lines


def test_items_of_lists_of_one_length_are_compared_one_by_one() -> None:
    old = {"a": [{"x": 1}, {"x": 2}], "b": [1]}
    new = {"a": [{"x": 1}, {"x": 3}], "b": [1, 2]}
    assert differences(old, new) == ["a[1].x: 2 → 3", "b: [1] → [1, 2]"]


def test_a_value_of_another_kind_is_a_difference() -> None:
    assert differences({"a": 1}, {"a": True}) == ["a: 1 → true"]
