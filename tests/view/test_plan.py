"""The three forms of a plan: table, command lines, JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from vdisagg.plan.make import Here, make_plan
from vdisagg.plan.model import Plan, Process
from vdisagg.topology.load import load
from vdisagg.view.plan import plan_commands, plan_json, plan_text

TEXT = """\
model: org/m
nodes: {here: {gpus: 8}}
engine: {args: {tensor_parallel_size: 2}}
prefill: {}
decode: {}
front_end: {port: 8080, api_key: {env: MY_KEY}}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of one prefill and one decode engine, two GPUs each."""
    file = tmp_path / "t.yaml"
    file.write_text(TEXT)
    return make_plan(load(file), Here("/py", "/vllm", Path("/state"), Path("/w[x]")), file=file)


def test_the_table_has_a_row_for_each_process(plan: Plan) -> None:
    assert plan_text(plan, width=100).splitlines() == [
        "t: 1P1D, nixl, org/m",
        "",
        "NAME        ROLE        NODE  GPUS  PORTS        DIRECTORY",
        "controller  controller  here  -     -            /w[x]/t/controller",
        "p0          prefill     here  0-1   21000-21003  /w[x]/t/p0",
        "d0          decode      here  2-3   21004-21007  /w[x]/t/d0",
        "front-end   front end   here  -     8080, 21008  /w[x]/t/front-end",
        "",
        "API: http://127.0.0.1:8080/v1, model m",
    ]


def test_tunnels_and_what_is_started_by_hand_are_shown(plan: Plan) -> None:
    p0, d0 = plan.instances
    tunnel = Process("tunnel-n1", "tunnel", "here", ("py",), {}, "/w/t/tunnel-n1")
    by_hand = msgspec.structs.replace(d0, manual=True)
    changed = msgspec.structs.replace(plan, instances=(p0, by_hand), tunnels=(tunnel,))
    rows = [line.split() for line in plan_text(changed).splitlines()]
    assert ["tunnel-n1", "tunnel", "here", "-", "-", "/w/t/tunnel-n1"] in rows
    assert ["d0", "decode", "here", "2-3", "21004-21007", "started", "by", "hand"] in rows
    assert plan_commands(changed).splitlines()[::3][-1] == "# d0 on here, to be started by hand"


def test_the_commands_stand_in_launch_order_under_their_names(plan: Plan) -> None:
    lines = plan_commands(plan).splitlines()
    assert lines[::3] == [
        "# controller on here",
        "# p0 on here",
        "# d0 on here",
        "# front-end on here",
    ]
    assert lines[1] == "PYTHONUNBUFFERED=1 /py -m vdisagg.control /state"
    assert ' VLLM_API_KEY="$MY_KEY" /vllm serve org/m ' in lines[10]


def test_the_json_is_the_whole_plan(plan: Plan) -> None:
    assert msgspec.json.decode(plan_json(plan), type=Plan) == plan


def test_a_narrow_terminal_gets_no_longer_lines_where_a_directory_can_go_on(plan: Plan) -> None:
    tunnel = Process("tunnel-n1", "tunnel", "here", ("py",), {}, "/w/" + "with spaces " * 8)
    text = plan_text(msgspec.structs.replace(plan, tunnels=(tunnel,)), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("with") == 8
