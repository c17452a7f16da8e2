"""A plan from the text of a topology."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from vdisagg.plan.make import Here, make_plan
from vdisagg.plan.model import Plan
from vdisagg.topology.load import load

HERE = Here(
    python="/venv/bin/python",
    vllm="/venv/bin/vllm",
    state_directory=Path("/state/t"),
    work_directory=Path("/home/me/.vdisagg"),
)

Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Plan a topology from text, in a file of its own called `t.yaml`."""

    def plan_text(text: str, here: Here = HERE, busy: Collection[int] = ()) -> Plan:
        file = tmp_path / "t.yaml"
        file.write_text(textwrap.dedent(text))
        return make_plan(load(file), here, file=file, busy=busy)

    return plan_text
