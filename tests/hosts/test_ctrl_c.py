"""Ctrl-C while a node is silent: a command ends at once, and not when it would have given the node up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from hosts.bed import Bed, send, until

if TYPE_CHECKING:
    from pathlib import Path

    from hosts.network import Command, Host

HEEDED_S = 8.0  # a node is given up after 20 s
UP, CHECK = ("up",), ("check", "--nodes")
BARE_UP, FIND = ("up", "--no-preflight"), ("down", "--find")


def interrupted(bed: Bed, words: tuple[str, ...], file: Path, silent: Host) -> None:
    """Run a command until it has begun to wait for the node, and interrupt it."""
    name, *options = words
    with bed.start(name, file, *options) as command:
        until(lambda: waits_for(bed, silent))
        ends_at_once(command)


def ends_at_once(command: Command) -> None:
    """Interrupt it."""
    begun = time.monotonic()
    send(command, 2)
    said = command.communicate(timeout=60)[1]
    took_s = time.monotonic() - begun
    assert command.returncode == 130, said
    assert took_s < HEEDED_S, said
    assert "Traceback" not in said


def waits_for(bed: Bed, silent: Host) -> bool:
    """Whether there is a connection to the node, or one that is being made."""
    states = ("state", "established", "state", "syn-sent")
    return bool(bed.here.run("ss", "-Htn", *states, "dst", f"{silent.address}:22").stdout)


@pytest.mark.parametrize("words", [UP, CHECK, BARE_UP, FIND], ids=" ".join)
def test_a_node_whose_sshd_is_frozen_holds_up_no_ctrl_c(bed: Bed, words: tuple[str, ...]) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2])
    n2.sshds[0].freeze()
    interrupted(bed, words, file, n2)
    n2.sshds[0].thaw()
    bed.nothing_is_left()


@pytest.mark.parametrize("words", [UP, BARE_UP], ids=" ".join)
def test_a_node_that_nothing_reaches_holds_up_no_ctrl_c(bed: Bed, words: tuple[str, ...]) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2])
    n2.swallow(22)
    interrupted(bed, words, file, n2)
    n2.unswallow()
    bed.nothing_is_left()


@pytest.mark.parametrize("words", [UP, BARE_UP], ids=" ".join)
def test_a_node_that_freezes_after_the_login_holds_up_no_ctrl_c(
    bed: Bed, words: tuple[str, ...]
) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2])
    (n2.home / ".bashrc").write_text("sleep 1000\n")
    name, *options = words
    with bed.start(name, file, *options) as command:
        until(lambda: "sleep 1000" in n2.processes().values())
        n2.sshds[0].freeze()
        ends_at_once(command)
    n2.reboot()
    bed.nothing_is_left()


def test_an_up_over_a_cluster_that_cannot_be_seen_heeds_ctrl_c(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], timeouts={"stop_s": 1})
    bed.vdisagg("up", file)
    n2.sshds[0].freeze()
    interrupted(bed, UP, file, n2)
    n2.sshds[0].thaw()
    bed.is_healthy()
    bed.vdisagg("down")
    bed.nothing_is_left()
