"""How far prefill may run ahead of a decode engine."""

from __future__ import annotations

from collections import Counter

import pytest

from fakes.ways import FakeWays
from vdisagg.control.placing import Placing
from vdisagg.control.routing import FewestInFlight

LEASE_S, SLOTS = 30.0, 4


def placing(*ends: float) -> Placing:
    """With as many requests bound as decode has slots, and these moments at which others have ended."""
    ways = FakeWays(lambda: [("p0", "d0")])
    ways.slots_each = SLOTS
    made = Placing(ways, FewestInFlight(), Counter(), lease_s=LEASE_S, decode_alone=False)
    for end in ends:
        made.finished("d0", now=end)
    for _ in range(SLOTS):
        made.bind("d0")
    return made


def ahead(made: Placing, *, now: float) -> int:
    """How many more are let through."""
    count = 0
    while not made.crowded("d0", now=now):
        made.bind("d0")
        count += 1
    return count


@pytest.mark.parametrize("ends", [(), (9.0,)], ids=["none", "one"])
def test_before_it_has_a_pace_one_more_is_let_through(ends: tuple[float, ...]) -> None:
    assert ahead(placing(*ends), now=10.0) == 1


def test_as_many_as_it_finishes_within_a_third_of_the_lease_are_let_through() -> None:
    """One a second."""
    assert ahead(placing(*map(float, range(20))), now=20.0) == 10


def test_b05_requests_that_end_together_are_no_pace() -> None:
    """Those that have begun together do: four in a millisecond are not four thousand a second."""
    assert ahead(placing(10.0, 10.0, 10.001, 10.001), now=10.002) == 4


def test_what_ended_before_a_pause_says_nothing_of_now() -> None:
    ends = [*map(float, range(20)), 3600.0, 3601.0, 3602.0, 3603.0, 3604.0]
    assert ahead(placing(*ends), now=3605.0) == 5
