"""Preflight on hosts of a network: over real sshd, with real links that are cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosts.bed import Bed
from hosts.network import Network


def findings(bed: Bed, file: Path) -> list[dict[str, Any]]:
    """What `check --nodes` finds, but for notes."""
    done = bed.vdisagg("check", file, "--nodes", "--json", check=False)
    value = json.loads(done.stdout)
    assert done.returncode == (1 if value["errors"] else 0)
    return [one for one in value["findings"] if one["level"] != "note"]


@pytest.fixture
def two_networks(network: Network) -> Bed:
    """SSH goes over 198.18.0.0/24, data over 198.18.1.0/24."""
    bed = Bed(network, here=("198.18.0.1/24", "198.18.1.1/24"))
    bed.node("n1", "198.18.0.11/24", "198.18.1.11/24")
    bed.node("n2", "198.18.0.12/24", "198.18.1.12/24")
    return bed


def spread(bed: Bed, **parts: Any) -> Path:
    hosts = bed.network.hosts
    nodes = {
        "here": {"data_ip": "198.18.1.1"},
        "n1": {"data_ip": "198.18.1.11"},
        "n2": {"data_ip": "198.18.1.12"},
    }
    return bed.topology([hosts["n1"], hosts["n2"]], nodes=nodes, **parts)


def test_nodes_that_are_fit_have_no_findings(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    assert findings(bed, bed.topology([n1, n2])) == []
    bed.nothing_is_left()


def test_d10_a_data_network_that_is_cut_is_told_with_both_ends(two_networks: Bed) -> None:
    bed = two_networks
    file = spread(bed)
    assert findings(bed, file) == []
    bed.network.hosts["n2"].cut(1)
    found = findings(bed, file)
    side = [one["found"] for one in found if "side channel" in one["found"]]
    assert len(side) == 1
    assert side[0].startswith("d0 on n2 cannot reach p0's side channel 198.18.1.11:")
    assert " on n1: " in side[0]
    assert {one["node"] for one in found} == {"n2"}
    up = bed.vdisagg("up", file, check=False)
    assert up.returncode == 1
    ends, _, why = side[0].rpartition(": ")
    # While the kernel still believes in its neighbour, nothing answers; afterwards it knows better.
    assert why in ("timed out", "no route to host")
    assert ends in up.stderr
    bed.nothing_is_left()


def test_one_node_that_is_gone_hides_nobody_elses_fault(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], nodes={"n2": {"vllm": "/nowhere/vllm"}})
    n1.cut(0)
    found = [(one["node"], one["what"]) for one in findings(bed, file)]
    assert found == [("n1", "reachable"), ("n2", "vllm")]
    n1.restore(0)


def test_d12_another_vllm_on_one_node_is_refused(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    python = n2.home / "python3"
    python.write_text(
        "#!/bin/sh\n"
        'echo \'<<<vdisagg-part {"python": "3.12.0", '
        '"versions": {"vllm": "0.1.0", "torch": "2.0", "nixl": "1.5.1"}} vdisagg-part>>>\'\n'
    )
    python.chmod(0o755)
    file = bed.topology([n1, n2], nodes={"n2": {"vllm": None, "python": str(python)}})
    found = findings(bed, file)
    assert {(one["node"], one["what"], one["level"]) for one in found} >= {
        ("n2", "vllm", "error"),
        ("all", "vllm", "error"),
        ("all", "torch", "error"),
    }
