"""How far a cluster has come: pure, from what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from vdisagg.cluster.admin import ControllerStatus, InstanceStatus, LinkStatus, Totals
from vdisagg.cluster.snapshot import Observation
from vdisagg.launch.readiness import Casualty, Sighting, casualty, progress

if TYPE_CHECKING:
    from launch.conftest import Cluster
    from vdisagg.cluster.admin import FrontState, InstanceState, LinkState
    from vdisagg.plan.model import Plan

NAMES = ("controller", "p0", "d0", "front-end")
RUNNING = dict.fromkeys(NAMES, Observation("running"))


@pytest.fixture
def plan(cluster: Cluster) -> Plan:
    return cluster.plan


def controller(
    d0: InstanceState = "ready", link: LinkState = "warm", front: FrontState = "attached"
) -> ControllerStatus:
    instances = [
        InstanceStatus("p0", "prefill", "ready", 0.0),
        InstanceStatus("d0", "decode", d0, 0.0, reason="why"),
    ]
    return ControllerStatus(1, 0.0, front, instances, [LinkStatus("p0", "d0", link)], Totals())


def stages(plan: Plan, seen: Sighting) -> list[str]:
    return [entry.stage for entry in progress(plan, seen, 0.0)]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Sighting({}, None, False), ["launching"] * 4 + ["0/1 warm"]),
        (Sighting(RUNNING, None, False), ["loading"] * 4 + ["0/1 warm"]),
        (
            Sighting(RUNNING, controller("launching", "cold", "waiting"), False),
            ["ready", "ready", "loading", "loading", "0/1 warm"],
        ),
        (
            Sighting(RUNNING, controller("connected", "cold"), False),
            ["ready", "ready", "connected", "connected", "0/1 warm"],
        ),
        (Sighting(RUNNING, controller(), True), ["ready"] * 4 + ["1/1 warm"]),
    ],
)
def test_stages_follow_what_is_seen(plan: Plan, seen: Sighting, expected: list[str]) -> None:
    assert stages(plan, seen) == expected


@pytest.mark.parametrize(
    "seen",
    [
        Sighting(RUNNING, controller(link="probing"), True),
        Sighting(RUNNING, controller(front="waiting"), True),
        Sighting(RUNNING, controller(d0="suspect"), True),
        Sighting(RUNNING, controller(), False),
        Sighting({**RUNNING, "p0": Observation("exited", code=0)}, controller(), True),
    ],
)
def test_one_thing_that_is_missing_is_not_ready(plan: Plan, seen: Sighting) -> None:
    assert not all(entry.done for entry in progress(plan, seen, 0.0))


def test_all_there_is_ready(plan: Plan) -> None:
    assert all(e.done for e in progress(plan, Sighting(RUNNING, controller(), True), 0.0))


@pytest.mark.parametrize(
    ("observation", "how"),
    [
        (Observation("exited", code=3), "exit code 3"),
        (Observation("exited", signal=9), "signal 9"),
        (Observation("gone"), "gone, and its guard with it"),
    ],
)
def test_a_dead_process_is_a_casualty(plan: Plan, observation: Observation, how: str) -> None:
    seen = Sighting({**RUNNING, "d0": observation}, controller(), True)
    assert casualty(plan, seen) == Casualty("d0", how)


@pytest.mark.parametrize(
    ("observation", "found"),
    [
        (Observation("running", generation=2, signal=9), Casualty("d0", "signal 9")),
        (Observation("running", generation=3, signal=9), Casualty("d0", "signal 9", 2)),
        (Observation("restarting", code=1), Casualty("d0", "exit code 1")),
        (Observation("running", generation=2), Casualty("d0", "started again")),
    ],
)
def test_a_process_that_was_restarted_or_will_be_is_a_casualty_unless_that_was_before(
    plan: Plan, observation: Observation, found: Casualty
) -> None:
    seen = Sighting({**RUNNING, "d0": observation}, controller(), True)
    assert casualty(plan, seen) == found
    assert casualty(plan, seen, {"d0": observation.ends}) is None
    assert casualty(plan, seen, {"p0": 1}) == found


def test_a_process_whose_guard_has_not_said_yet_how_it_ended_is_no_casualty_yet(plan: Plan) -> None:
    seen = Sighting({**RUNNING, "d0": Observation("gone", guard_alive=True)}, controller(), True)
    assert casualty(plan, seen) is None
    entry = next(entry for entry in progress(plan, seen, 0.0) if entry.name == "d0")
    assert (entry.stage, entry.done) == ("dead", False)
    assert entry.detail == "ended, and its guard has not said yet how"


def test_a_process_whose_guard_waits_to_start_it_again_is_shown_as_such(plan: Plan) -> None:
    seen = Sighting({**RUNNING, "d0": Observation("restarting", code=1)}, controller(), True)
    entry = next(entry for entry in progress(plan, seen, 0.0) if entry.name == "d0")
    assert (entry.stage, entry.detail, entry.done) == ("restarting", "exit code 1", False)


def test_an_engine_that_is_started_by_hand_is_awaited_until_the_controller_hears_it(
    plan: Plan,
) -> None:
    p0, d0 = plan.instances
    by_hand = msgspec.structs.replace(
        plan, instances=(p0, msgspec.structs.replace(d0, manual=True))
    )
    seen = {name: seen for name, seen in RUNNING.items() if name != "d0"}
    entries = progress(by_hand, Sighting(seen, controller("planned", "cold"), False), 0.0)
    assert [entry.name for entry in entries] == ["controller", "p0", "front-end", "d0", "links"]
    assert (entries[3].stage, entries[3].detail) == ("awaited", "is started by hand")
    assert stages(by_hand, Sighting(seen, controller("connected"), False))[3] == "connected"
    assert all(e.done for e in progress(by_hand, Sighting(seen, controller(), True), 0.0))


def test_an_engine_that_the_controller_calls_dead_is_a_casualty(plan: Plan) -> None:
    seen = Sighting(RUNNING, controller(d0="dead"), True)
    assert casualty(plan, seen) == Casualty("d0", "reported dead: why")


def test_what_has_not_been_started_yet_is_no_casualty(plan: Plan) -> None:
    seen = Sighting({"p0": Observation("never")}, None, False)
    assert casualty(plan, seen) is None
