"""A decode engine that has read a wrong KV cache is told to empty its prefix cache until it has."""

from __future__ import annotations

import pytest

from vdisagg.control import wire
from vdisagg.control.actions import Send
from vdisagg.control.purge import AGAIN_S, FIRST_CALL, Purges


def told(number: int) -> Send:
    call = (0, FIRST_CALL + number, "reset_prefix_cache", [True])
    return Send("d0", wire.UTILITY, wire.encode(call))


def answer(number: int, value: object = True, failure: str | None = None) -> wire.UtilityOutput:
    return wire.UtilityOutput(FIRST_CALL + number, failure, wire.raw((None, value)))


def test_it_is_told_at_once_and_done_when_it_says_so() -> None:
    purges = Purges()
    assert purges.want("d0", now=1.0) == [told(1)]
    assert purges.answered("d0", answer(1), now=1.5)
    assert purges.tick(now=100.0) == []


@pytest.mark.parametrize(
    "failed", [answer(1, value=False), answer(1, None, "requests wait for a transfer")]
)
def test_it_is_told_again_until_it_is_done(failed: wire.UtilityOutput) -> None:
    purges = Purges()
    purges.want("d0", now=1.0)
    assert purges.tick(now=50.0) == [], "one call at a time"
    assert purges.answered("d0", failed, now=60.0)
    assert purges.tick(now=60.0 + AGAIN_S - 0.1) == []
    assert purges.tick(now=60.0 + AGAIN_S) == [told(2)]


def test_what_is_read_while_a_purge_is_under_way_needs_another() -> None:
    purges = Purges()
    purges.want("d0", now=1.0)
    assert purges.want("d0", now=1.1) == [told(2)]
    assert purges.answered("d0", answer(1), now=1.2)
    assert purges.answered("d0", answer(2, value=False), now=1.3)
    assert purges.tick(now=9.0) == [told(3)]


def test_a_lost_engine_is_told_again_and_a_new_one_is_not() -> None:
    purges = Purges()
    purges.want("d0", now=1.0)
    purges.lost("d0", now=2.0)
    assert purges.tick(now=2.0, ready=lambda name: name != "d0") == []
    assert purges.tick(now=2.0) == [told(2)]
    purges.renewed("d0")
    assert purges.tick(now=9.0) == []


def test_answers_to_the_front_ends_calls_are_not_ours() -> None:
    assert not Purges().answered("d0", wire.UtilityOutput(7), now=1.0)


def test_what_an_earlier_controller_owed_is_asked_for_once_the_engine_is_there() -> None:
    purges = Purges()
    purges.owe("d0", now=1.0)
    assert purges.wants("d0")
    assert purges.tick(now=1.0, ready=lambda _: False) == []
    assert purges.tick(now=2.0, ready=lambda _: True) == [told(1)]
    purges.answered("d0", answer(1), now=2.5)
    assert not purges.wants("d0")
