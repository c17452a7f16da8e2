"""Which processes of a cluster that is up are started again: pure, from what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vdisagg.cluster.admin import ControllerStatus, InstanceStatus, Totals
from vdisagg.cluster.snapshot import Observation
from vdisagg.launch.casualties import NEWBORN_S, casualties, is_deciding

if TYPE_CHECKING:
    from launch.conftest import Cluster
    from vdisagg.cluster.admin import InstanceState
    from vdisagg.plan.model import Plan

STARTED = 1000.0
RUNNING = Observation("running", started_at=STARTED, guard_alive=True)


@pytest.fixture
def plan(cluster: Cluster) -> Plan:
    return cluster.plan


def controller(d0: InstanceState = "ready", since: float = 2000.0) -> ControllerStatus:
    instances = [
        InstanceStatus("p0", "prefill", "ready", 0.0),
        InstanceStatus("d0", "decode", d0, since, reason="silent for 30 s"),
    ]
    return ControllerStatus(1, 0.0, "attached", instances, [], Totals())


def found(
    plan: Plan, heard: ControllerStatus | None = None, **changed: Observation
) -> dict[str, str]:
    names = (process.name for process in plan.processes())
    return casualties(plan, {**dict.fromkeys(names, RUNNING), **changed}, heard)


@pytest.mark.parametrize(
    ("observation", "why"),
    [
        (Observation("exited", signal=9), "signal 9"),
        (Observation("exited", code=1, gave_up=True), "exit code 1, and its guard gave up"),
        (Observation("restarting", code=1), "exit code 1"),
        (Observation("gone"), "gone, and its guard with it"),
        (Observation("never"), "was never started"),
        (Observation("running", stopped=True), "is stopped by a signal"),
    ],
)
def test_what_is_dead_or_stopped_is_started_again(
    plan: Plan, observation: Observation, why: str
) -> None:
    assert found(plan, controller(), d0=observation) == {"d0": why}


def test_what_runs_well_is_kept_also_without_its_guard(plan: Plan) -> None:
    assert found(plan, controller(), d0=Observation("running", guard_alive=False)) == {}


@pytest.mark.parametrize("state", ["suspect", "dead"])
def test_an_engine_that_runs_and_is_silent_is_started_again(
    plan: Plan, state: InstanceState
) -> None:
    why = f"runs, and is {state} to the controller: silent for 30 s"
    assert found(plan, controller(state)) == {"d0": why}


def test_an_engine_that_was_dead_before_its_process_began_is_loading(plan: Plan) -> None:
    assert found(plan, controller("dead", since=STARTED - 5.0)) == {}
    assert found(plan, controller("dead", since=STARTED + NEWBORN_S - 1.0)) == {}
    assert found(plan, controller("dead", since=STARTED + NEWBORN_S + 1.0))


def test_a_controller_that_does_not_answer_is_started_again_and_says_nothing_of_others(
    plan: Plan,
) -> None:
    assert found(plan, None) == {"controller": "runs, and does not answer"}


def test_what_cannot_be_seen_is_no_casualty(plan: Plan) -> None:
    assert found(plan, controller(), p0=Observation("unreachable", reason="cut")) == {}


def test_a_suspect_is_waited_for(plan: Plan) -> None:
    assert [is_deciding(heard) for heard in (None, controller("suspect"))] == [True, True]
    assert [is_deciding(controller(state)) for state in ("ready", "dead")] == [False, False]
