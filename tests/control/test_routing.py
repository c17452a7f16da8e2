"""Which link a request takes."""

from __future__ import annotations

import itertools
from collections import Counter

from vdisagg.control.routing import FewestInFlight

LINKS = [("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1")]


def test_no_links_no_choice() -> None:
    assert FewestInFlight().choose([], {}) is None


def test_the_prefill_engine_with_the_fewest_is_chosen_first_then_the_decode_engine() -> None:
    loads = {"p0": 2, "p1": 1, "d0": 5, "d1": 4}
    assert FewestInFlight().choose(LINKS, loads) == ("p1", "d1")


def test_a_link_that_is_not_offered_is_not_chosen() -> None:
    assert FewestInFlight().choose([("p0", "d0")], {"p0": 9, "d0": 9}) == ("p0", "d0")


def test_an_engine_that_nobody_has_counted_yet_has_none_in_flight() -> None:
    assert FewestInFlight().choose(LINKS, {"p0": 1, "d0": 1}) == ("p1", "d1")


def test_idle_engines_take_turns_on_both_sides() -> None:
    policy = FewestInFlight()
    chosen = [policy.choose(LINKS, {}) for _ in range(8)]
    for link in chosen:
        assert link is not None
    for side in (0, 1):
        names = [link[side] for link in chosen if link is not None]
        assert all(a != b for a, b in itertools.pairwise(names))


def test_c01_an_uneven_number_of_engines_gets_even_shares() -> None:
    policy = FewestInFlight()
    links = [("p0", f"d{i}") for i in range(3)]
    shares = Counter(policy.choose(links, {}) for _ in range(300))
    assert set(shares.values()) == {100}


def test_c01_an_engine_that_comes_late_is_not_flooded() -> None:
    policy = FewestInFlight()
    for _ in range(100):
        policy.choose([("p0", "d0")], {})
    late = [policy.choose([("p0", "d0"), ("p0", "d1")], {}) for _ in range(10)]
    assert late.count(("p0", "d1")) == 5


def test_the_loads_are_not_changed() -> None:
    loads = Counter({"p0": 1})
    FewestInFlight().choose(LINKS, loads)
    assert loads == Counter({"p0": 1})
    assert "p1" not in loads
