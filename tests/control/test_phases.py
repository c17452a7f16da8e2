"""When what happened to a request: noted once each, kept for the last ones, told page by page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control.test_dispatch import Desk
from control.test_failover import SQUARE
from fakes.engine import events
from fakes.messages import GREEDY, prefilled, request
from vdisagg.cluster.admin import Timing, Timings
from vdisagg.cluster.modes import COLOCATED, KEY
from vdisagg.control import wire
from vdisagg.control.phases import queued_s
from vdisagg.control.recent import PAGE, Recent

STOP: dict[str, Any] = {"finish_reason": wire.STOP}


def told(desk: Desk, after: int = 0) -> Timings:
    """On a clock that is Unix time less 1000 s."""
    return desk.dispatch.recent.after(after, started=900.0, to_unix=1000.0)


def timed(number: int = 1, request: str = "r", **changes: Any) -> Timing:
    """Received at 1, prefill's at 2, decode's first token at 4, over at 5."""
    fields: dict[str, Any] = {
        "received": 1001.0,
        "decode": "d0",
        "sent_s": 0.0,
        "first_s": 3.0,
        "end_s": 4.0,
        "prefill": "p0",
        "prefilled_s": 1.0,
        "engine_queue_s": None,
    }
    return Timing(number=number, request=request, **{**fields, **changes})


def over(desk: Desk, instance: str, leg: str, first: float, end: float) -> None:
    """An answering leg's first and last output, and one in between."""
    nothing: dict[str, Any] = {}
    for now, last in ((first, nothing), ((first + end) / 2, nothing), (end, STOP)):
        desk.hear(instance, wire.Output(leg, [7], **last), now=now)


# -- the engine's queue -------------------------------------------------------------------------


def test_the_queue_is_the_time_between_two_instants_of_one_engine() -> None:
    assert queued_s(events(7000.0, 7000.5)) == 0.5


@pytest.mark.parametrize(
    "told",
    [
        wire.NIL,
        wire.raw([]),
        wire.raw([{"type": 1, "timestamp": 5.0}]),
        wire.raw([{"type": 2, "timestamp": 5.0}]),
        wire.raw([{"type": "queued", "timestamp": 5.0}]),
        wire.raw("none"),
    ],
)
def test_an_engine_that_does_not_tell_both_has_no_queue(told: Any) -> None:
    assert queued_s(told) is None


def test_after_a_preemption_the_first_step_counts() -> None:
    twice = [(1, 5.0), (2, 5.25), (3, 6.0), (2, 7.0)]
    assert queued_s(wire.raw([{"type": t, "timestamp": at} for t, at in twice])) == 0.25


def test_clocks_that_go_back_make_no_negative_queue() -> None:
    assert queued_s(events(7000.0, 6999.0)) == 0.0


# -- one request --------------------------------------------------------------------------------


def test_a_request_over_both_legs() -> None:
    desk = Desk().started()
    desk.hear("p0", prefilled("p:1:0:r", events=events(50.0, 50.25)), now=2.0)
    over(desk, "d0", "d:2:0:r", 4.0, 5.0)
    assert told(desk) == Timings([timed(engine_queue_s=0.25)], last=1, dropped=0, started=900.0)


def test_prefills_token_ahead_is_not_decodes_first() -> None:
    desk = Desk().started(logprobs=None)
    desk.hear("p0", prefilled("p:1:0:r"), now=2.0)
    over(desk, "d0", "d:2:0:r", 4.0, 5.0)
    assert told(desk).timings == [timed()]


def test_decodes_own_queue_is_not_taken_for_prefills() -> None:
    desk = Desk().started()
    desk.hear("p0", prefilled("p:1:0:r"), now=2.0)
    desk.hear("d0", wire.Output("d:2:0:r", [7], events=events(1.0, 2.0)), now=4.0)
    desk.hear("d0", wire.Output("d:2:0:r", [8], **STOP), now=5.0)
    assert told(desk).timings == [timed()]


def test_what_is_held_is_sent_later() -> None:
    desk = Desk()
    desk.ways.slots_each = 1
    for name in "abc":
        desk.started(name)
    desk.hear("p0", prefilled("p:1:0:a"), prefilled("p:2:0:b"), now=2.0)
    over(desk, "d0", "d:3:0:a", 2.5, 3.0)
    desk.hear("p0", prefilled("p:5:0:c"), now=4.0)
    over(desk, "d0", "d:6:0:c", 5.0, 6.0)
    assert told(desk, after=1).timings == [
        timed(2, "c", sent_s=2.0, prefilled_s=3.0, first_s=4.0, end_s=5.0)
    ]


@pytest.mark.parametrize("name", ["p0", "d0"])
def test_what_one_engine_computed_has_no_prefill(name: str) -> None:
    desk = Desk()
    if name == "d0":
        desk.started("other", extra_args={KEY: COLOCATED})
    desk.started(extra_args={KEY: COLOCATED})
    leg = "w:2:0:r" if name == "d0" else "w:1:0:r"
    desk.hear(name, wire.Output(leg, [7], events=events(9.0, 9.5)), now=4.0)
    desk.hear(name, wire.Output(leg, [8], **STOP), now=5.0)
    whole = timed(decode=name, prefill="", prefilled_s=None, engine_queue_s=0.5)
    assert told(desk).timings == [whole]


def test_an_answer_of_one_output_ends_with_its_first() -> None:
    desk = Desk().started(max_tokens=1)
    desk.hear("p0", wire.Output("w:1:0:r", [7], **STOP), now=4.0)
    (one,) = told(desk).timings
    assert (one.decode, one.first_s, one.end_s) == ("p0", 3.0, 3.0)


def test_what_fails_or_is_aborted_is_not_told_nor_are_probes() -> None:
    desk = Desk().started("a").started("b")
    desk.dispatch.abort(0, ["a"], now=2.0)
    desk.links = []
    desk.dispatch.instance_lost("p0", "dead", now=2.0)
    assert told(desk) == Timings([], last=0, dropped=0, started=900.0)


def test_a_request_that_is_begun_again_is_timed_by_the_last_try() -> None:
    desk = Desk(*SQUARE).started()
    desk.links = [link for link in desk.links if "p0" not in link]
    desk.dispatch.instance_lost("p0", "dead", now=3.0)
    desk.hear("p1", prefilled("p:2:0:r"), now=4.0)
    over(desk, "d1", "d:3:0:r", 6.0, 7.0)
    assert told(desk).timings == [
        timed(prefill="p1", decode="d1", sent_s=2.0, prefilled_s=3.0, first_s=5.0, end_s=6.0)
    ]


def test_an_answer_that_is_continued_is_timed_from_its_first_try_to_its_last_end() -> None:
    desk = Desk(*SQUARE).started(logprobs=None)
    desk.hear("p0", prefilled("p:1:0:r"), now=2.0)
    desk.hear("d0", wire.Output("d:2:0:r", [7]), now=4.0)
    desk.links = [link for link in desk.links if "d0" not in link]
    desk.dispatch.instance_lost("d0", "dead", now=4.5)
    (leg,) = desk.dispatch._legs.flights
    desk.hear("p1", prefilled(leg), now=4.75)
    (leg,) = desk.dispatch._legs.flights
    over(desk, "d1", leg, 4.8, 5.0)
    assert told(desk).timings == [timed(decode="d1")]


@pytest.mark.parametrize("begun", [False, True])
def test_what_an_earlier_controller_had_in_hand_is_not_timed(begun: bool) -> None:
    desk = Desk()
    asked = request("r", {**GREEDY, "extra_args": {KEY: COLOCATED}})
    desk.dispatch.adopt(0, asked, (), [7] * begun, begun=begun, now=1.0)
    desk.hear("p0", wire.Output("w:1:0:r", [7], **STOP))
    assert desk.dispatch.counts.finished == 1
    assert told(desk).last == 0


# -- the last ones ------------------------------------------------------------------------------


def finished(kept: int, count: int) -> Recent:
    """So many have finished: r1, r2, …"""
    desk = Desk()
    desk.dispatch = replace(desk.dispatch, recent=Recent(kept))
    for number in range(1, count + 1):
        desk.started(f"r{number}", max_tokens=1)
        (leg,) = desk.dispatch._legs.flights
        desk.hear("p0", wire.Output(leg, [7], **STOP))
    return desk.dispatch.recent


@pytest.mark.parametrize(
    ("after", "numbers", "dropped"),
    [
        (0, [3, 4, 5], 2),
        (1, [3, 4, 5], 1),
        (2, [3, 4, 5], 0),
        (4, [5], 0),
        (5, [], 0),
        (1 << 62, [], 0),
        (-7, [3, 4, 5], 2),
    ],
)
def test_those_after_a_number_and_how_many_are_not_kept(
    after: int, numbers: list[int], dropped: int
) -> None:
    answer = finished(3, 5).after(after, started=0.0, to_unix=0.0)
    assert [one.number for one in answer.timings] == numbers
    assert [one.request for one in answer.timings] == [f"r{number}" for number in numbers]
    assert (answer.last, answer.dropped) == (5, dropped)


def test_there_are_so_many_on_a_page() -> None:
    recent = finished(2 * PAGE, PAGE + 2)
    page = recent.after(1, started=0.0, to_unix=0.0)
    assert [one.number for one in page.timings] == [*range(2, PAGE + 2)]
    rest = recent.after(PAGE + 1, started=0.0, to_unix=0.0)
    assert [one.number for one in rest.timings] == [PAGE + 2]
    assert (page.last, page.dropped) == (PAGE + 2, 0)
