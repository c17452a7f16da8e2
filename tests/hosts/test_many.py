"""Many nodes at once, against one. All of them share this machine's processors: see each test."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from hosts.bed import Bed
from hosts.network import Host

NODES = 16
SLOW = "sleep 0.5\n"
"""A shell that takes a while to start, as with home directories on a network file system."""


def seconds_of_up(bed: Bed, hosts: Sequence[Host], **parts: Any) -> float:
    """How long `up` takes, the quicker of two; the cluster serves and is taken down again."""
    file = bed.topology(hosts, **parts)
    taken = []
    for _ in range(2):
        begun = time.monotonic()
        bed.vdisagg("up", file)
        taken.append(time.monotonic() - begun)
        bed.serves()
        bed.vdisagg("down")
    return min(taken)


def test_up_on_16_nodes_serves_and_says_how_long_it_took_beside_one_node(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    """One engine on each of 16 nodes, against two on one. What it takes here is mostly computing, which
    16 machines would do at once and this one can't: the figure is printed, and not asserted."""
    hosts = bed.nodes(NODES)
    one = seconds_of_up(bed, hosts[:1])
    decode = {"node": None, "instances": [{"node": host.name} for host in hosts[1:]]}
    many = seconds_of_up(bed, hosts, decode=decode)
    bed.nothing_is_left()
    with capsys.disabled():
        print(f"\nup: {one:.1f} s on 1 node, {many:.1f} s on {NODES} nodes: {many / one:.1f} times")


def test_16_nodes_that_are_slow_to_answer_serve_too(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Waiting dominates here, as with machines that have processors of their own: the figure shows
    whether they are waited for at once."""
    hosts = bed.nodes(NODES)
    for host in hosts:
        (host.home / ".bashrc").write_text(SLOW)
    one = seconds_of_up(bed, hosts[:1])
    decode = {"node": None, "instances": [{"node": host.name} for host in hosts[1:]]}
    many = seconds_of_up(bed, hosts, decode=decode)
    with capsys.disabled():
        print(f"\nup, slow: {one:.1f} s on 1 node, {many:.1f} s on {NODES}: {many / one:.1f} times")
