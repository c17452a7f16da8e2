"""Handles that went down with a controller: the next one gives their blocks back, whatever was lost and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fakes.handles import World
from fakes.messages import abort, handle, outputs, prefilled, sends
from fakes.ways import FakeWays
from vdisagg.control import wire
from vdisagg.control.actions import Action, Send, Tainted
from vdisagg.control.dispatch import Dispatch, Limits
from vdisagg.control.handover import Nixl
from vdisagg.control.ledger import OpenLeg
from vdisagg.control.routing import FewestInFlight

from .test_handles import every_order

OLD, YOUNG = 0x100, 0x1000
P_LEG, D_LEG = "p:10:0:r", "d:11:0:r"
COMPUTING = OpenLeg(P_LEG, "p0", "p0", P_LEG)
HANDED = OpenLeg(P_LEG, "p0", "d0", D_LEG)
SAMPLE = {"p0": bytes(wire.raw({**handle("p:2:-1:p0-d0"), "remote_engine_id": "e"}))}


class Heir:
    """A Dispatch after an earlier one; its legs count from 1001 (hexadecimal)."""

    def __init__(self, *legs: OpenLeg, samples: dict[str, bytes] = SAMPLE, **others: Any) -> None:
        self.links = [("p0", "d0"), ("p0", "d1")]
        limits = Limits(request_s=30.0)
        ways = FakeWays(lambda: self.links)
        self.dispatch = Dispatch(Nixl(), FewestInFlight(), ways, YOUNG, limits)
        self.dispatch.inherit(legs, samples, others.get("alive", ["p0", "d0", "d1"]))

    def back(self, name: str) -> list[Action]:
        return self.dispatch.instance_back(name, now=1.0)

    def hear(self, name: str, *given: wire.Output) -> list[Action]:
        return self.dispatch.outputs(name, outputs(*given), (), now=2.0)

    def step(self, name: str, nudge: str) -> list[Action]:
        return self.hear(name, wire.Output(nudge, [7], finish_reason=wire.LENGTH))


def released(actions: list[Action]) -> list[tuple[str, str]]:
    """Releases, as (decode engine, whose handle)."""
    found = []
    for action in actions:
        if isinstance(action, Send) and action.kind == wire.ADD:
            asked = wire.decode_add(action.payload)
            if asked.abort_immediately:
                transfer = (asked.sampling_params or {})["extra_args"]["kv_transfer_params"]
                assert transfer["remote_engine_id"] == "e", "not out of the sample"
                found.append((action.instance, transfer["remote_request_id"]))
    return found


def test_a_leg_that_says_nothing_until_its_engine_has_stepped_is_given_back() -> None:
    heir = Heir(COMPUTING)
    assert sends(heir.back("d0")) == [("d0", "ADD n:1001:-1:d0")], "nothing of it is there"
    assert sends(heir.back("p0")) == [("p0", f"ABORT {P_LEG}"), ("p0", "ADD n:1002:-1:p0")]
    assert released(heir.step("p0", "n:1002:-1:p0")) == [("d0", P_LEG)]
    assert heir.dispatch.tick(now=3.0) == [], "once"


def test_a_handle_that_does_come_is_given_back_as_it_is() -> None:
    heir = Heir(COMPUTING)
    heir.back("p0")
    mine = wire.raw({**handle(P_LEG), "remote_engine_id": "e", "remote_block_ids": [[3]]})
    assert released(heir.hear("p0", prefilled(P_LEG, kv_transfer_params=mine))) == [("d0", P_LEG)]
    assert released(heir.step("p0", "n:1001:-1:p0")) == []


def test_a_leg_that_ends_without_a_handle_is_over() -> None:
    heir = Heir(COMPUTING)
    heir.back("p0")
    heir.hear("p0", wire.Output(P_LEG, [], finish_reason=wire.ERROR))
    assert released(heir.step("p0", "n:1001:-1:p0")) == []


def test_a_part_of_a_prompt_is_not_its_end() -> None:
    heir = Heir(COMPUTING)
    heir.back("p0")
    assert heir.hear("p0", wire.Output(P_LEG, [])) == [abort("p0", P_LEG)]
    assert released(heir.step("p0", "n:1001:-1:p0")) == [("d0", P_LEG)]


def test_what_was_handed_on_is_given_back_unless_decode_says_that_it_has_read_it() -> None:
    heir = Heir(HANDED)
    assert sends(heir.back("p0")) == [("p0", "ADD n:1001:-1:p0")]
    assert released(heir.step("p0", "n:1001:-1:p0")) == []
    assert sends(heir.back("d0"))[0] == ("d0", f"ABORT {D_LEG}")
    assert released(heir.step("d0", "n:1002:-1:d0")) == [("d0", P_LEG)]

    heir = Heir(HANDED)
    heir.back("d0")
    assert heir.hear("d0", wire.Output(D_LEG, [7])) == [abort("d0", D_LEG)]
    assert released(heir.step("d0", "n:1001:-1:d0")) == []


@pytest.mark.parametrize("leg", [HANDED, COMPUTING], ids=["handed on", "computing"])
def test_an_engine_that_returns_after_its_handle_was_given_back_may_have_read_it_too_late(
    leg: OpenLeg,
) -> None:
    heir = Heir(leg)
    heir.dispatch.instance_lost("d0", "silent", now=1.0)
    back = heir.back("d0")
    assert (Tainted("d0") in back) is (leg is HANDED)
    assert Tainted("d0") not in heir.back("d0"), "once"


def test_an_engine_that_is_lost_again_is_asked_again() -> None:
    heir = Heir(COMPUTING)
    heir.back("p0")
    heir.dispatch.instance_lost("p0", "cut", now=1.5, may_return=True)
    assert sends(heir.back("p0")) == [("p0", f"ABORT {P_LEG}"), ("p0", "ADD n:1002:-1:p0")]
    assert released(heir.step("p0", "n:1002:-1:p0")) == [("d0", P_LEG)]


def test_blocks_of_an_engine_that_has_ended_are_nobodys() -> None:
    heir = Heir(COMPUTING, OpenLeg("p:12:0:s", "p0", "d0", "d:13:0:s"))
    heir.dispatch.instance_lost("p0", "dead", now=1.0)
    heir.dispatch.instance_renewed("p0")
    heir.back("d0")
    assert released(heir.step("d0", "n:1001:-1:d0")) == []
    assert heir.dispatch.tick(now=3.0) == []
    assert Heir(COMPUTING, alive=["d0"]).back("p0") == Heir().back("p0")


def test_an_engine_that_is_back_after_it_was_given_up_gives_its_blocks_back() -> None:
    heir = Heir(COMPUTING)
    assert released(heir.dispatch.instance_lost("p0", "silent", now=1.0)) == []
    heir.back("p0")
    assert released(heir.step("p0", "n:1001:-1:p0")) == [("d0", P_LEG)]


def test_what_a_decode_engine_that_has_ended_was_to_read_is_given_back_through_another() -> None:
    heir = Heir(HANDED)
    heir.links = [("p0", "d1")]
    assert released(heir.dispatch.instance_lost("d0", "dead", now=1.0)) == [("d1", P_LEG)]
    heir = Heir(HANDED, alive=["p0", "d1"])
    assert released(heir.dispatch.tick(now=1.0)) == [("d0", P_LEG)]


def test_without_a_sample_it_waits_for_one() -> None:
    heir = Heir(COMPUTING, samples={})
    heir.back("p0")
    assert released(heir.step("p0", "n:1001:-1:p0")) == []
    assert heir.dispatch.tick(now=2.5) == []
    other = wire.raw({**handle("p:20:0:s"), "remote_engine_id": "e"})
    heir.hear("p0", prefilled("p:20:0:s", kv_transfer_params=other))
    assert released(heir.dispatch.tick(now=3.0)) == [("d0", P_LEG)]


# -- everything that can be lost ------------------------------------------------------------------


def check(world: World) -> None:
    world.tick(now=0.5)  # for what could not be given back at once
    world.drain()
    assert world.held == {}, "a handle waits for the end of its lease"
    assert world.freed_too_early == []
    assert world.dispatch.users_in_flight == 0
    for name in world.asked:
        assert world.ended[name] == (name not in world.aborted), name
    world.tick(now=100.0)  # legs that were aborted at prefill are forgotten
    world.drain()
    assert world.book.open.legs == {}


def known(world: World) -> World:
    """With a handle seen of each prefill engine, as probes see to it."""
    for name in ("first", "second"):
        world.add(name)
    world.drain()
    assert len(world.book.open.samples) == sum(name[0] == "p" for name in world.engines)
    return world


@pytest.mark.parametrize("aborted", [False, True])
def test_a_controller_that_is_killed_at_any_moment_leaves_no_handle(aborted: bool) -> None:
    fates: set[tuple[int, int]] = set()

    def run(choose: Callable[[int], int]) -> None:
        world = known(World())
        given_back = sum(world.given_back.values())
        world.add("r0")
        while moves := list(world.moves()):
            choice = choose(len(moves) + 1)
            if choice == len(moves):
                break
            moves[choice]()
        if aborted and not world.ended["r0"]:
            world.abort("r0")
        world.take_over(lambda count: choose(count + 1))
        for name in [["p0", "d0"], ["d0", "p0"]][choose(2)]:
            world.back(name)
            if choose(2):
                world.drain()
        world.ways.coming = False
        world.drain()
        check(world)
        fates.add((sum(world.read.values()) - 2, sum(world.given_back.values()) - given_back))

    assert every_order(run) > 100
    assert any(given_back for _, given_back in fates)


def busy(world: World, rng: random.Random) -> Iterator[None]:
    """30 requests. After each come some moves, at times an abort, and what the caller does."""
    for i in range(30):
        world.add(f"r{i}", max_tokens=rng.choice([1, 2, 5]))
        for _ in range(rng.randrange(8)):
            if moves := list(world.moves()):
                rng.choice(moves)()
        name = f"r{rng.randrange(i + 1)}"
        if rng.random() < 0.3 and name not in world.aborted and not world.ended[name]:
            world.abort(name)
        yield


@pytest.mark.parametrize("seed", range(150))
def test_connections_that_break_under_what_was_said_leave_no_handle(seed: int) -> None:
    rng = random.Random(seed)
    world = known(World(2, 2))
    for _ in busy(world, rng):
        away = [name for name, engine in world.engines.items() if not engine.connected]
        if away and rng.random() < 0.7:
            if rng.random() < 0.3:
                world.give_up(away[0])
            world.back(away[0])
        elif not away and rng.random() < 0.3:
            world.lose(rng.choice([*world.engines]), lambda count: rng.randrange(count + 1))
    world.all_back()
    world.drain()
    check(world)


@pytest.mark.parametrize("seed", range(150))
def test_controllers_killed_again_and_again_leave_no_handle(seed: int) -> None:
    rng = random.Random(seed)
    world = known(World(2, 2))
    for _ in busy(world, rng):
        if rng.random() < 0.15:
            world.take_over(lambda count: rng.randrange(count + 1))
        away = [name for name, engine in world.engines.items() if not engine.connected]
        if away and rng.random() < 0.7:
            world.back(rng.choice(away))
            world.ways.coming = len(away) > 1
    world.all_back()
    world.drain()
    check(world)
