"""A request that asks for one engine: which one it gets, and what becomes of it when that one goes."""

from __future__ import annotations

from typing import Any

import pytest

from control.test_dispatch import Desk, error
from control.test_failover import asked_of, notes, prompt_of, replies
from fakes.messages import GREEDY, PROMPT, add, prefilled, request, sends
from vdisagg.cluster.modes import COLOCATED, KEY, PD
from vdisagg.control import wire
from vdisagg.control.actions import Action, Note, Reply
from vdisagg.control.flights import HOPE_S, MOVES, REDOS
from vdisagg.control.mode import fault, is_colocated, without_mode

SAID = {"extra_args": {KEY: COLOCATED}}


def ask(desk: Desk, *names: str, **sampling: Any) -> list[tuple[str, str]]:
    """Requests for one engine; what goes to engines."""
    actions: list[Action] = []
    for name in names:
        asked = request(name, {**GREEDY, **SAID, **sampling})
        actions += desk.dispatch.add(0, asked, (), now=1.0)
    return sends(actions)


def test_the_mode_is_read_and_no_engine_sees_it() -> None:
    said = {"temperature": 0.0, "extra_args": {KEY: COLOCATED, "mine": [1, "x"]}}
    assert is_colocated(said)
    assert without_mode(said) == {"temperature": 0.0, "extra_args": {"mine": [1, "x"]}}
    assert without_mode({"extra_args": {KEY: PD}}) == {"extra_args": None}
    assert without_mode({"extra_args": {"mine": 1}}) == {"extra_args": {"mine": 1}}


@pytest.mark.parametrize(
    "sampling", [None, {}, {"extra_args": None}, {"extra_args": {}}, {"extra_args": {KEY: PD}}]
)
def test_where_nothing_else_is_said_it_is_both_kinds_of_engines(
    sampling: dict[str, Any] | None,
) -> None:
    assert not is_colocated(sampling)
    assert fault(sampling) == ""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("whole", "its vdisagg_mode is 'whole'; known: pd, colocated"),
        ("", "its vdisagg_mode is ''; known: pd, colocated"),
        (1, "its vdisagg_mode is 1; known: pd, colocated"),
        (["pd"], "its vdisagg_mode is ['pd']; known: pd, colocated"),
        ("x" * 500, f"its vdisagg_mode is '{'x' * 79}; known: pd, colocated"),
    ],
)
def test_a_mode_that_is_none_is_an_error_that_names_it(said: object, why: str) -> None:
    desk = Desk()
    asked = request("r", {**GREEDY, "extra_args": {KEY: said}})
    assert desk.dispatch.add(0, asked, (), now=1.0) == [
        Note("request", f"r: {why}"),
        Reply(0, [error("r")], 0.0),
    ]
    assert (desk.dispatch.counts.failed, desk.dispatch.counts.colocated) == (1, 0)


def test_pd_is_what_it_is_without_a_word_and_may_be_continued() -> None:
    """An extra argument that stays would hinder both: prefill's token ahead, and going on elsewhere."""
    desk = Desk().started(logprobs=None, extra_args={KEY: PD})
    told = replies(desk.hear("p0", prefilled("p:1:0:r")))
    assert [output.new_token_ids for output in told] == [[7]]
    assert desk.dispatch.counts.colocated == 0


def test_one_engine_computes_the_whole_of_it() -> None:
    desk = Desk()
    sampling = {"temperature": 0.0, "max_tokens": 3, "stop": ["x"]}
    said = {**sampling, "extra_args": {KEY: COLOCATED, "mine": 1, "kv_transfer_params": {"a": 1}}}
    frames = [b"tensor"]
    assert desk.dispatch.add(2, request("r", said), frames, now=1.0) == [
        add("p0", request("w:1:2:r", {**sampling, "extra_args": {"mine": 1}}), frames)
    ]
    assert desk.loads == {"p0": 1}
    stats = wire.raw({"num_cached_tokens": 2})
    assert desk.hear("p0", wire.Output("w:1:2:r", [7], prefill_stats=stats)) == [
        Reply(2, [wire.Output("r", [7], prefill_stats=stats)], 50.0)
    ]
    last = wire.Output("w:1:2:r", [8, 9], finish_reason=wire.LENGTH)
    assert desk.hear("p0", last) == [
        Reply(2, [wire.Output("r", [8, 9], finish_reason=wire.LENGTH)], 50.0)
    ]
    counts = desk.dispatch.counts
    assert (desk.loads, counts.colocated, counts.finished, counts.alone) == ({}, 1, 1, 0)


@pytest.mark.parametrize("sampling", [{"max_tokens": 1}, {"prompt_logprobs": 0}, {"n": 2}])
def test_so_does_one_whose_legs_would_have_been_fewer_anyway(sampling: dict[str, Any]) -> None:
    desk = Desk()
    ask(desk, "before")
    assert ask(desk, "r", **sampling) == [("d0", "ADD w:2:0:r")]


def test_engines_of_both_roles_share_them_by_what_they_have_to_do() -> None:
    desk = Desk(("p0", "d0"), ("p0", "d1"))
    assert [at for at, _ in ask(desk, *"abcdef")] == ["p0", "d0", "d1", "p0", "d0", "d1"]
    desk.hear("d0", wire.Output("w:2:0:b", [7], finish_reason=wire.STOP))
    assert [at for at, _ in ask(desk, *"ghij")] == ["d0", "p0", "d1", "d0"]


def test_what_is_bound_for_a_decode_engine_counts_as_its_work() -> None:
    """The first is at p0, and will be at d0."""
    desk = Desk(("p0", "d0"), ("p0", "d1")).started("pd")
    assert ask(desk, "r") == [("d1", "ADD w:2:0:r")]


def test_it_needs_no_link() -> None:
    desk = Desk()
    desk.links.clear()
    desk.ways.others = ["p0"]
    assert ask(desk, "r") == [("p0", "ADD w:1:0:r")]


def test_with_no_engine_it_ends_at_once() -> None:
    desk = Desk()
    desk.links.clear()
    actions = desk.dispatch.add(0, request("r", {**GREEDY, **SAID}), (), now=1.0)
    assert notes(actions) == ["r: no working instance"]
    assert replies(actions) == [error("r")]


# -- when its engine goes -----------------------------------------------------------------------


@pytest.mark.parametrize(("first", "other"), [("p0", "d0"), ("d0", "p0")])
def test_before_the_first_byte_it_is_begun_again_on_another_engine(first: str, other: str) -> None:
    desk = Desk()
    if first == "d0":
        ask(desk, "before")
    ask(desk, "r")
    lost = desk.dispatch.instance_lost(first, "dead", now=2.0)
    name = "w:3:0:r" if first == "d0" else "w:2:0:r"
    assert sends(lost) == [(other, f"ADD {name}")]
    assert notes(lost) == [f"r: {first} is gone: dead; begun again on {other}"]
    assert asked_of(lost, other).sampling_params == {**GREEDY, "extra_args": None}
    assert (desk.dispatch.counts.redone, desk.dispatch.counts.colocated) == (
        1,
        2 if first == "d0" else 1,
    )


def test_after_the_first_byte_it_is_continued_by_one_engine() -> None:
    desk = Desk()
    ask(desk, "r", logprobs=None)
    desk.hear("p0", wire.Output("w:1:0:r", [7]))
    desk.hear("p0", wire.Output("w:1:0:r", [8]))
    lost = desk.dispatch.instance_lost("p0", "dead", now=2.0)
    assert sends(lost) == [("d0", "ADD w:2:0:r")]
    rest = asked_of(lost, "d0")
    assert prompt_of(rest) == [*PROMPT, 7, 8]
    assert rest.sampling_params is not None
    assert rest.sampling_params["max_tokens"] == 6
    assert replies(desk.hear("d0", wire.Output("w:2:0:r", [9], finish_reason=wire.STOP))) == [
        wire.Output("r", [9], finish_reason=wire.STOP)
    ]
    assert (desk.dispatch.counts.continued, desk.loads) == (1, {})


def test_an_engine_that_refuses_it_is_not_asked_again() -> None:
    desk = Desk()
    ask(desk, "r")
    refused = wire.Output("w:1:0:r", [], finish_reason=wire.ERROR)
    assert sends(desk.hear("p0", refused)) == [("d0", "ADD w:2:0:r")]
    again = desk.hear("d0", wire.Output("w:2:0:r", [], finish_reason=wire.ERROR))
    assert replies(again) == [error("r")]


@pytest.mark.parametrize("begun", [False, True])
def test_engines_do_not_die_of_it_for_ever(begun: bool) -> None:
    desk = Desk(("p0", "d0"), ("p0", "d1"))
    ask(desk, "r", max_tokens=100, logprobs=None)
    deaths, told = 0, False
    while not told:
        (at,) = desk.loads
        if begun:
            (leg,) = desk.dispatch._legs.flights
            desk.hear(at, wire.Output(leg, [7]))
        told = bool(replies(desk.dispatch.instance_lost(at, "dead", now=2.0)))
        deaths += 1
    assert deaths == (MOVES if begun else REDOS) + 1
    assert desk.dispatch.users_in_flight == 0


def test_with_no_other_engine_it_waits_for_one_that_may_be_back() -> None:
    desk = Desk()
    ask(desk, "r")
    desk.links.clear()
    desk.ways.hope = True
    assert sends(desk.dispatch.instance_lost("p0", "cut", now=2.0, may_return=True)) == []
    desk.ways.others = ["p0"]
    assert sends(desk.dispatch.instance_back("p0", now=3.0)) == [
        ("p0", "ABORT w:1:0:r"),
        ("p0", "ADD n:2:-1:p0"),
        ("p0", "ADD w:3:0:r"),
    ]


def test_it_does_not_wait_for_long() -> None:
    desk = Desk()
    desk.links.clear()
    desk.ways.hope = True
    assert ask(desk, "r") == []
    assert desk.dispatch.tick(now=1.0 + HOPE_S) == []
    assert notes(desk.dispatch.tick(now=1.1 + HOPE_S)) == ["r: no working instance for 5 s"]


# -- in a crowd ---------------------------------------------------------------------------------


def test_an_engine_is_given_as_many_as_it_runs_and_the_next_one() -> None:
    desk = Desk()
    desk.ways.slots_each = 1
    assert [at for at, _ in ask(desk, *"abcdef")] == ["p0", "d0", "p0", "d0"]
    ended = desk.hear("p0", wire.Output("w:1:0:a", [7], finish_reason=wire.STOP))
    assert sends(ended) == [("p0", "ADD w:5:0:e")], "in order"


def test_it_takes_a_decode_engines_places_from_those_that_prefill_is_to_begin() -> None:
    desk = Desk()
    desk.ways.slots_each = 1
    ask(desk, *"abcd")
    assert sends(desk.dispatch.add(0, request("pd"), (), now=1.0)) == []
    ended = desk.hear("d0", wire.Output("w:2:0:b", [7], finish_reason=wire.STOP))
    assert sends(ended) == [("p0", "ADD p:5:0:pd")]


def test_no_handle_waits_for_it_so_memory_is_its_engines_own_business() -> None:
    desk = Desk()
    desk.ways.full_ones = {"p0", "d0"}
    assert [at for at, _ in ask(desk, *"abcd")] == ["p0", "d0", "p0", "d0"]


def test_it_does_not_stand_behind_those_that_wait_for_a_link() -> None:
    desk = Desk()
    desk.links.clear()
    desk.ways.hope = True
    assert sends(desk.dispatch.add(0, request("pd"), (), now=1.0)) == []
    desk.ways.others = ["p0"]
    assert ask(desk, "r") == [("p0", "ADD w:1:0:r")]
    told = desk.dispatch.tick(now=1.1 + HOPE_S)
    assert notes(told) == ["pd: no working link between a prefill and a decode instance for 5 s"]


def test_an_abort_while_it_is_held_takes_it_out_of_its_line() -> None:
    desk = Desk()
    desk.ways.slots_each = 1
    ask(desk, *"abcdef")
    assert desk.dispatch.abort(0, ["e"], now=2.0) == []
    ended = desk.hear("p0", wire.Output("w:1:0:a", [7], finish_reason=wire.STOP))
    assert sends(ended) == [("p0", "ADD w:5:0:f")]


# -- a controller that takes over ---------------------------------------------------------------


def test_what_an_earlier_controller_had_not_answered_begins_again_in_its_mode() -> None:
    desk = Desk()
    asked = request("r", {**GREEDY, **SAID})
    adopted = desk.dispatch.adopt(0, asked, (), [], begun=False, now=1.0)
    assert sends(adopted) == [("p0", "ADD w:1:0:r")]
    assert desk.dispatch.counts.colocated == 1


def test_an_answer_that_an_earlier_controller_had_begun_goes_on_in_its_mode() -> None:
    desk = Desk()
    asked = request("r", {**GREEDY, **SAID})
    adopted = desk.dispatch.adopt(0, asked, (), [7, 8], begun=True, now=1.0)
    assert sends(adopted) == [("p0", "ADD w:1:0:r")]
    assert prompt_of(asked_of(adopted, "p0")) == [*PROMPT, 7, 8]


def test_a_mode_that_is_none_is_refused_by_the_controller_after_too() -> None:
    """The one before was killed between the request's coming and its answer."""
    desk = Desk()
    asked = request("r", {**GREEDY, "extra_args": {KEY: "x"}})
    assert replies(desk.dispatch.adopt(0, asked, (), [], begun=False, now=1.0)) == [error("r")]
