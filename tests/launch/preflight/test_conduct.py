"""All nodes at once, with real processes and sockets: two nodes that are both this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.two_nodes import HERE, N1, Lost, Nodes, Within, free_block, plan, serves
from vdisagg.cluster.findings import Finding, errors
from vdisagg.errors import Failure, Interrupted
from vdisagg.launch.pipes import Here, PipeTalk
from vdisagg.launch.preflight.conduct import preflight
from vdisagg.plan.model import Plan, Secret
from vdisagg.plan.versions import KNOWN_VERSIONS


@pytest.fixture
def wanted(tmp_path: Path) -> Plan:
    """A plan on free ports, with a small vLLM and a small model that pass."""
    site = tmp_path / "site"
    for name, version in (("vllm", KNOWN_VERSIONS[0]), ("torch", "2.13.0"), ("nixl", "1.5.1")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    vllm = tmp_path / "vllm"
    vllm.write_text(f"#!{python}\n")
    for script in (python, vllm):
        script.chmod(0o755)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return serves(model, str(vllm), plan(first=free_block()))


def look(wanted: Plan, nodes: Nodes | None = None, **options: Any) -> tuple[Finding, ...]:
    with nodes or Nodes() as asked:
        return preflight(wanted, asked, environment={}, **options)


def test_nodes_that_are_fit_have_notes_only(wanted: Plan) -> None:
    found = look(wanted)
    assert {finding.level for finding in found} == {"note"}
    assert [(f.node, f.what) for f in found] == [
        *((node, what) for node in ("here", "n1", "n2") for what in ("vllm", "model")),
        ("all", "paths"),
    ]
    assert found[-1].found == "7 of 7 between nodes are open"


def test_d09_a_port_that_is_taken_is_told_with_its_holder(wanted: Plan) -> None:
    port = wanted.instances[0].connector_ports[0]
    with socket.create_server((N1, port)):
        (one,) = errors(look(wanted))
    assert (one.node, one.what) == ("n1", "port of p0 nixl")
    assert f"{N1}:{port} is taken: pid {os.getpid()} (" in one.found


def test_the_running_cluster_holds_its_own_ports_and_that_is_said(wanted: Plan) -> None:
    with socket.create_server((N1, wanted.instances[0].connector_ports[0])):
        found = look(wanted, running=True)
    assert errors(found) == ()
    assert (found[-1].what, found[-1].level) == ("not tested", "note")


def test_d10_a_path_that_is_closed_names_both_ends(wanted: Plan) -> None:
    """n2 has a network of its own here: it can answer, and reach nobody."""
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make a network namespace")
    # Its own ports can't be tested there: a decode engine's side channel is left out.
    p0, d0 = wanted.instances
    quiet = msgspec.structs.replace(d0, connector_ports=())
    found = errors(
        look(
            msgspec.structs.replace(wanted, instances=(p0, quiet)),
            Nodes(n2=Within("unshare", "--net")),
        )
    )
    assert {finding.node for finding in found} == {"n2"}
    side = p0.connector_ports[0]
    assert f"d0 on n2 cannot reach p0's side channel {N1}:{side} on n1: network is unreachable" in [
        finding.found for finding in found
    ]
    assert sum(f"{HERE}:" in finding.found for finding in found) == 3


def test_one_node_that_cannot_be_asked_costs_only_its_own_row(wanted: Plan) -> None:
    found = look(wanted, Nodes(n1=Lost("n1: timed out; next: look at the network")))
    (one,) = errors(found)
    assert (one.node, one.what, one.found) == ("n1", "reachable", "timed out")
    assert one.next == "look at the network"
    assert ("n2", "vllm") in [(f.node, f.what) for f in found]
    assert found[-1].found == "3 of 3 between nodes are open"


def test_every_finding_of_every_node_comes_at_once(wanted: Plan) -> None:
    (Path(wanted.model) / "config.json").unlink()
    with socket.create_server((N1, wanted.instances[0].connector_ports[0])):
        found = errors(look(wanted, Nodes(n2=Lost("no route to host"))))
    assert [(f.node, f.what) for f in found] == [
        ("here", "model"),
        ("n1", "model"),
        ("n1", "port of p0 nixl"),
        ("n2", "reachable"),
    ]


def test_d05_a_node_without_a_fit_python_is_told_what_was_tried(
    wanted: Plan, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (one,) = errors(look(wanted, Nodes(n2=Within("env", f"PATH={tmp_path}/empty"))))
    assert (one.node, one.what) == ("n2", "Python")
    assert one.found == "python3: not found; python: not found"


def test_a_secret_that_is_missing_is_told_on_its_node(wanted: Plan) -> None:
    p0, d0 = wanted.instances
    process = msgspec.structs.replace(p0.process, secrets=(Secret("HF_TOKEN", from_env="MINE"),))
    p0 = msgspec.structs.replace(p0, process=process)
    (one,) = errors(look(msgspec.structs.replace(wanted, instances=(p0, d0))))
    assert (one.node, one.what) == ("n1", "secrets")
    assert "MINE is not set" in one.found


def test_a_signal_breaks_a_look_at_a_silent_node_off(wanted: Plan) -> None:
    class Silent(Here):
        """A node that answers long after the test."""

        def talk(self, words: Sequence[str]) -> PipeTalk:
            called.set()
            ended.wait(60.0)
            raise Failure("too late")

    def tick() -> None:
        if called.is_set():
            raise Interrupted("interrupted by SIGINT", 2)

    called, ended = threading.Event(), threading.Event()
    with Nodes(n1=Silent()) as nodes:
        try:
            with pytest.raises(Interrupted):
                preflight(wanted, nodes, environment={}, tick=tick)
        finally:
            ended.set()


def test_an_instance_that_somebody_else_starts_is_said_not_to_be_looked_at(wanted: Plan) -> None:
    p0, d0 = wanted.instances
    by_hand = msgspec.structs.replace(d0, manual=True)
    found = look(msgspec.structs.replace(wanted, instances=(p0, by_hand)))
    assert errors(found) == ()
    assert [(f.what, f.found) for f in found if f.node == "n2"] == [
        ("not looked at", "d0 is started by hand")
    ]
