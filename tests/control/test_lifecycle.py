"""The table of an instance's states: what is in it happens, what is not raises and changes nothing."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from vdisagg.cluster.admin import InstanceState
from vdisagg.control.lifecycle import TRANSITIONS, IllegalSignalError, Life, Signal

STATES: tuple[InstanceState, ...] = get_args(InstanceState)

TABLE = """
    planned    launched  launching
    launching  hello     connected
    launching  died      dead
    connected  hello     connected
    connected  ready     ready
    connected  lost      dead
    connected  died      dead
    ready      hello     connected
    ready      lost      suspect
    ready      died      dead
    ready      drain     draining
    suspect    hello     connected
    suspect    back      ready
    suspect    died      dead
    draining   drained   stopped
    draining   lost      dead
    draining   died      dead
    dead       launched  launching
    dead       hello     connected
    dead       back      ready
    stopped    died      stopped
"""
ROWS = [tuple(line.split()) for line in TABLE.strip().splitlines()]
ABSENT = [
    pair
    for pair in itertools.product(STATES, Signal)
    if pair not in {(state, Signal(signal)) for state, signal, _ in ROWS}
]


@pytest.mark.parametrize(("state", "signal", "after"), ROWS)
def test_a_pair_in_the_table_leads_where_it_says(
    state: InstanceState, signal: str, after: InstanceState
) -> None:
    before = Life(state, since=1.0, generation=4, reason="old")
    assert before.takes(Signal(signal))
    life = before.handle(Signal(signal), now=2.0, reason="new")
    assert (life.state, life.since, life.reason) == (after, 2.0, "new")
    assert before == Life(state, since=1.0, generation=4, reason="old")


@pytest.mark.parametrize(("state", "signal"), ABSENT)
def test_a_pair_that_is_absent_raises_and_changes_nothing(
    state: InstanceState, signal: Signal
) -> None:
    life = Life(state, since=1.0, generation=4, reason="old")
    assert not life.takes(signal)
    with pytest.raises(IllegalSignalError, match=f"{signal} in state {state}"):
        life.handle(signal, now=2.0, reason="new")
    assert life == Life(state, since=1.0, generation=4, reason="old")


def test_the_table_has_no_other_pairs() -> None:
    assert len(TRANSITIONS) == len(ROWS)


@pytest.mark.parametrize(("state", "signal", "after"), ROWS)
def test_hello_begins_a_generation_and_nothing_else_does(
    state: InstanceState, signal: str, after: InstanceState
) -> None:
    life = Life(state, generation=4).handle(Signal(signal), now=2.0)
    assert life.generation == 4 + (signal == "hello")


def test_only_a_ready_instance_is_routable() -> None:
    assert [state for state in STATES if Life(state).routable] == ["ready"]


def test_a_reason_does_not_outlive_its_state() -> None:
    dead = Life("ready").handle(Signal.DIED, now=1.0, reason="exit code 3")
    assert dead.handle(Signal.HELLO, now=2.0).reason == ""
