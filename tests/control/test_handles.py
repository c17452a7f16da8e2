"""A handle is read by one decode leg or given back once, in every order of events."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fakes.handles import World
from vdisagg.cluster.modes import COLOCATED, PD

Choose = Callable[[int], int]


def every_order(run: Callable[[Choose], None]) -> int:
    """Call `run` once for every way in which its choices can fall; returns how many there were."""
    path: list[tuple[int, int]] = []
    runs = 0
    while True:
        depth = 0

        def choose(count: int) -> int:
            nonlocal depth
            if depth == len(path):
                path.append((0, count))
            depth += 1
            return path[depth - 1][0]

        run(choose)
        runs += 1
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return runs
        path[-1] = (path[-1][0] + 1, path[-1][1])


def check_idle(world: World) -> None:
    """Nothing is held, nothing is under way, everybody has been answered once."""
    assert world.misread == []
    assert world.held.keys() <= world.entrusted, "a handle waits for the end of its lease"
    assert set(world.dispatch.in_flight.values()) <= {0}
    assert world.dispatch.users_in_flight == 0
    assert world.dispatch.handles_held == 0
    for name in world.asked:
        assert world.ended[name] == (name not in world.aborted), name


def check_once(world: World) -> None:
    """Every handle was read or given back, not both, and once."""
    fates = world.read + world.given_back
    assert set(fates.values()) <= {1}, fates


@pytest.mark.parametrize("end", ["abort", "deadline", "front lost"])
def test_b01_a_request_that_ends_early_in_any_order_of_events_releases_its_handle_once(
    end: str,
) -> None:
    fates: set[tuple[int, int]] = set()

    def run(choose: Choose) -> None:
        world = World()
        world.add("r0")
        ended_early = False
        while moves := list(world.moves()):
            may_end = not ended_early and not world.ended["r0"]
            choice = choose(len(moves) + may_end)
            if choice < len(moves):
                moves[choice]()
                continue
            ended_early = True
            if end == "abort":
                world.abort("r0")
            elif end == "deadline":
                world.tick(now=101.0)
            else:
                world.front_lost()
        check_idle(world)
        check_once(world)
        fates.add((sum(world.read.values()), sum(world.given_back.values())))

    assert every_order(run) > 10
    # The handle was read, given back, or never made.
    assert fates == {(1, 0), (0, 1), (0, 0)}


def add_and_move(world: World, rng: random.Random, name: str) -> None:
    """One more request, and a few of the things that can happen next."""
    world.add(name, max_tokens=rng.choice([1, 2, 5]), mode=rng.choice([PD, PD, COLOCATED]))
    for _ in range(rng.randrange(6)):
        if moves := list(world.moves()):
            rng.choice(moves)()


@pytest.mark.parametrize("seed", range(100))
def test_b01_many_requests_cut_at_random_leave_no_handle(seed: int) -> None:
    rng = random.Random(seed)
    world = World(2, 2)
    for i in range(40):
        add_and_move(world, rng, f"r{i}")
        name = f"r{rng.randrange(i + 1)}"
        if rng.random() < 0.6 and name not in world.aborted and not world.ended[name]:
            world.abort(name)
    world.drain()
    check_idle(world)
    check_once(world)


@pytest.mark.parametrize("fault", ["cut and back", "death"])
@pytest.mark.parametrize("seed", range(100))
def test_engines_that_go_and_come_leave_no_handle_on_those_that_live(seed: int, fault: str) -> None:
    """One engine at a time: with no decode engine left, the end of the lease has to do it."""
    rng = random.Random(seed)
    world = World(2, 2)
    down = ""
    for i in range(40):
        add_and_move(world, rng, f"r{i}")
        name = f"r{rng.randrange(i + 1)}"
        if rng.random() < 0.3 and name not in world.aborted and not world.ended[name]:
            world.abort(name)
        if rng.random() < 0.3:
            if down:
                (world.back if fault == "cut and back" else world.restart)(down)
                down = ""
            else:
                down = rng.choice(list(world.engines))
                (world.lose if fault == "cut and back" else world.die)(down)
    if down:
        (world.back if fault == "cut and back" else world.restart)(down)
    world.drain()
    check_idle(world)
    assert all(not engine.jobs for engine in world.engines.values())
