"""Preflight in front of a launch, and by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes.two_nodes import free_block, plan, serves
from vdisagg.cluster import record
from vdisagg.cluster.findings import Finding
from vdisagg.errors import PreflightFailed
from vdisagg.launch.preflight.check import check, refuse_errors
from vdisagg.launch.up import up

if TYPE_CHECKING:
    from launch.conftest import Cluster
    from vdisagg.plan.model import Node, Plan

ERROR = Finding("n1", "GPU 0 of p0", "held by pid 7 (alice)", "free", "end it")
OTHER = Finding("n2", "vllm", "vllm is not on PATH", "vLLM", "install it")
WARNING = Finding("n2", "clock", "9.0 s ahead", "within 2 s", "use NTP", "warning")
NOTE = Finding("n1", "vllm", "0.32.0", level="note")


def test_errors_refuse_all_at_once_and_warnings_are_said() -> None:
    said: list[str] = []
    with pytest.raises(PreflightFailed) as caught:
        refuse_errors(plan(), [ERROR, WARNING, NOTE, OTHER], said.append)
    assert str(caught.value).splitlines() == [
        "nothing was started, as the nodes are not fit for it:",
        "  n1: GPU 0 of p0: held by pid 7 (alice) (expected: free); next: end it",
        "  n2: vllm: vllm is not on PATH (expected: vLLM); next: install it",
        "next: mend that, and look again by `vdisagg check t.yaml --nodes`",
    ]
    assert said == ["warning: n2: clock: 9.0 s ahead (expected: within 2 s); next: use NTP"]


def test_warnings_alone_let_a_launch_go_on() -> None:
    refuse_errors(plan(), [WARNING, NOTE], lambda text: None)


@pytest.mark.parametrize("findings", [[ERROR], [WARNING, NOTE]], ids=["error", "warning"])
def test_up_starts_nothing_where_preflight_finds_an_error(
    cluster: Cluster, findings: list[Finding]
) -> None:
    asked: list[bool] = []

    def look(plan: Plan, *, running: bool, tick: Callable[[], None]) -> list[Finding]:
        assert cluster.is_empty()
        asked.append(running)
        return findings

    def bring_up() -> None:
        up(
            cluster.plan,
            cluster.runner_for,
            state_directory=cluster.directory,
            report=cluster.talk,
            check=look,
            environment={},
        )

    if ERROR in findings:
        with pytest.raises(PreflightFailed, match="pid 7"):
            bring_up()
        assert cluster.is_empty()
        assert record.read(cluster.directory) is None
    else:
        bring_up()
        assert f"warning: {WARNING}" in cluster.talk.said
    assert asked == [False]


def test_a_recorded_cluster_is_looked_at_with_its_own_ports(tmp_path: Path) -> None:
    recorded = on_this_machine(plan(first=free_block()))
    replanned = on_this_machine(plan(first=free_block()))
    record.write(tmp_path, record.Record(recorded, 0.0, 1, "up", {}))
    assert [
        f.found for f in check(replanned, tmp_path, tick=lambda: None) if f.what == "not tested"
    ] == ["cluster t runs: its ports, its GPUs and the paths between nodes are in use"]


def on_this_machine(wanted: Plan) -> Plan:
    def local(node: Node) -> Node:
        return msgspec.structs.replace(node, ssh=None)

    made = serves(Path("/nowhere"), "/nowhere/vllm", wanted)
    return msgspec.structs.replace(made, nodes=tuple(map(local, wanted.nodes)))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`vdisagg WORDS` on a topology of one node whose model is a folder of this test."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    first = free_block(12)
    (tmp_path / "t.yaml").write_text(
        f"model: {tmp_path}/m\n"
        f"nodes: {{here: {{device: cpu, python: {sys.executable}, work_dir: {tmp_path}}}}}\n"
        f"prefill: {{node: here}}\ndecode: {{node: here}}\n"
        f"front_end: {{port: {first}}}\nports: {{first: {first + 1}}}\n"
    )

    def run_it(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        command = [sys.executable, "-m", "vdisagg", *words]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=60
        )

    return run_it


def test_check_nodes_tells_programs_what_it_found_and_starts_nothing(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "m" / "config.json").unlink()
    done = run("check", "t.yaml", "--nodes", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = [f for f in json.loads(done.stdout)["findings"] if f["what"] == "model"]
    assert [(f["node"], f["level"]) for f in found] == [("here", "error")]
    assert not (tmp_path / "state").exists()


def test_d05_check_nodes_shows_people_the_python_of_each_nodes_vllm(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run("check", "t.yaml", "--nodes")
    heading, row, *_, last = done.stdout.splitlines()
    assert heading.split()[:3] == ["NODE", "LEVEL", "WHAT"]
    assert row.split()[:2] == ["here", "note"] or "not installed" in row
    assert sys.executable in done.stdout
    assert "`vdisagg up` would" in last


def test_up_refuses_by_what_preflight_found(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "m" / "config.json").unlink()
    done = run("up", "t.yaml")
    assert done.returncode == 1
    assert "here: model: no config.json in" in done.stderr
    assert not (tmp_path / "state/vdisagg/t/cluster.json").exists()
