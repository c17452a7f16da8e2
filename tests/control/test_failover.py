"""A leg that fails does not fail its request: begun again, continued, or computed by decode alone."""

from __future__ import annotations

from typing import Any

import pytest

from control.test_dispatch import Desk, error
from fakes.messages import PROMPT, abort, prefilled, request, sends
from vdisagg.control import wire
from vdisagg.control.actions import Action, Beat, Miss, Note, Pair, Reply, Send, Tainted
from vdisagg.control.flights import HOPE_S, MOVES, PARDON_S, REDOS
from vdisagg.control.release import LEASE_S

SQUARE: tuple[Pair, ...] = (("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1"))
PLAIN: dict[str, Any] = {"logprobs": None}
"""With which a greedy request gets prefill's token ahead."""


def replies(actions: list[Action]) -> list[wire.Output]:
    """What the front end is told."""
    return [output for a in actions if isinstance(a, Reply) for output in a.outputs]


def notes(actions: list[Action]) -> list[str]:
    return [action.what for action in actions if isinstance(action, Note)]


def asked_of(actions: list[Action], instance: str) -> wire.AddRequest:
    """The ADD that goes to an engine."""
    (found,) = [
        a for a in actions if isinstance(a, Send) and a.kind == wire.ADD and a.instance == instance
    ]
    return wire.decode_add(found.payload)


def prompt_of(asked: wire.AddRequest) -> list[int]:
    return list(wire.decode_value(asked.prompt_token_ids))


def without(desk: Desk, name: str) -> None:
    """An engine goes out of rotation."""
    desk.links = [link for link in desk.links if name not in link]


# -- before the first byte ----------------------------------------------------------------------


def test_b03_a_request_whose_prefill_dies_is_begun_again_on_another_link() -> None:
    desk = Desk(*SQUARE).started()
    without(desk, "p0")
    actions = desk.dispatch.instance_lost("p0", "dead", now=2.0)
    assert sends(actions) == [("p1", "ADD p:2:0:r")]
    assert notes(actions) == ["r: p0 is gone: dead; begun again over p1→d1"]
    assert prompt_of(asked_of(actions, "p1")) == list(PROMPT)
    assert (desk.dispatch.counts.redone, desk.dispatch.counts.failed) == (1, 0)
    assert desk.loads == {"p1": 1}


def test_b03_a_request_whose_handle_dies_with_prefill_does_not_wait_for_decode() -> None:
    desk = Desk(*SQUARE).decoding()
    without(desk, "p0")
    actions = desk.dispatch.instance_lost("p0", "dead", now=3.0)
    assert sends(actions) == [
        ("d0", "ABORT d:2:0:r"),
        ("d0", "ADD n:3:-1:d0"),
        ("p1", "ADD p:4:0:r"),
    ]


def test_a_request_that_engines_die_of_is_not_begun_again_for_ever() -> None:
    desk = Desk(*SQUARE).started()
    deaths = 0
    told: list[wire.Output] = []
    while not told:
        (at,) = desk.loads
        told = replies(desk.dispatch.instance_lost(at, "dead", now=2.0))
        deaths += 1
    assert (told, deaths) == ([error("r")], REDOS + 1)
    assert (desk.loads, desk.dispatch.users_in_flight) == ({}, 0)


def test_connections_that_broke_while_we_were_stopped_are_no_deaths_of_a_request() -> None:
    desk = Desk(*SQUARE).started()
    desk.dispatch.paused(10.0, now=2.0)
    for _ in range(REDOS + 3):
        (at,) = desk.loads
        lost = desk.dispatch.instance_lost(at, "disconnected", now=2.5, may_return=True)
        assert replies(lost) == []
    deaths = 0
    while desk.loads:
        (at,) = desk.loads
        desk.dispatch.instance_lost(at, "dead", now=2.1 + PARDON_S)
        deaths += 1
    assert deaths == REDOS + 1, "none has been counted before"


def test_with_no_prefill_left_decode_computes_the_prompt_itself() -> None:
    desk = Desk(alone=True).started()
    desk.links.clear()
    desk.ways.alone = ["d0"]
    actions = desk.dispatch.instance_lost("p0", "dead", now=2.0)
    assert sends(actions) == [("d0", "ADD w:2:0:r")]
    assert "extra_args" not in (asked_of(actions, "d0").sampling_params or {})
    assert "no working link is left: decode engines compute prompts themselves" in notes(actions)
    (last,) = replies(desk.hear("d0", wire.Output("w:2:0:r", [7], finish_reason=wire.STOP)))
    assert last == wire.Output("r", [7], finish_reason=wire.STOP)
    assert desk.dispatch.counts.alone == 1


def test_new_requests_go_to_decode_alone_too_unless_the_topology_forbids_it() -> None:
    for alone, expected in [(True, [("d0", "ADD w:1:0:r")]), (False, [])]:
        desk = Desk(alone=alone)
        desk.links.clear()
        desk.ways.alone = ["d0"]
        actions = desk.dispatch.add(0, request("r"), (), now=1.0)
        assert sends(actions) == expected
        assert (replies(actions) == []) is alone


def test_the_return_of_a_link_ends_computing_alone() -> None:
    desk = Desk(alone=True)
    desk.links, links = [], desk.links
    desk.ways.alone = ["d0"]
    desk.dispatch.add(0, request("a"), (), now=1.0)
    desk.links = links
    assert notes(desk.dispatch.add(0, request("b"), (), now=2.0)) == [
        "prefill engines compute prompts again"
    ]


@pytest.mark.parametrize("reason", [wire.ERROR, wire.ABORTED])
def test_c04_a_request_that_prefill_refuses_is_tried_on_another(reason: int) -> None:
    desk = Desk(*SQUARE).started()
    actions = desk.hear("p0", wire.Output("p:1:0:r", [], finish_reason=reason))
    assert sends(actions) == [("p1", "ADD p:2:0:r")]
    again = desk.hear("p1", wire.Output("p:2:0:r", [], finish_reason=reason))
    assert replies(again) == [error("r")]


def test_a_transfer_that_fails_is_a_miss_of_its_link_and_the_request_takes_another() -> None:
    desk = Desk(*SQUARE).decoding()
    actions = desk.hear("d0", wire.Output("d:2:0:r", [], finish_reason=wire.ERROR))
    assert Miss(("p0", "d0"), False, "d0 ended the decode leg with an error") in actions
    (sent,) = sends(actions)
    assert sent[1] == "ADD p:3:0:r"


def test_what_is_missing_in_a_multi_modal_cache_is_the_front_ends_to_mend() -> None:
    desk = Desk(*SQUARE).started()
    missed = wire.raw(["hash"])
    output = wire.Output("p:1:0:r", [], finish_reason=wire.ERROR, mm_cache_miss_hashes=missed)
    (told,) = replies(desk.hear("p0", output))
    assert told.mm_cache_miss_hashes == missed


# -- hung prefill, late handles, lost links -----------------------------------------------------


def test_a_handover_that_takes_too_long_is_ended_and_the_request_takes_another_prefill() -> None:
    desk = Desk(*SQUARE).decoding()
    assert desk.dispatch.tick(now=12.0) == []
    actions = desk.dispatch.tick(now=12.1)
    assert actions[0] == Miss(("p0", "d0"), False, "no output of its decode leg on d0 within 10 s")
    assert sends(actions) == [
        ("d0", "ABORT d:2:0:r"),
        ("d0", "ADD n:3:-1:d0"),
        ("p1", "ADD p:4:0:r"),
    ]


def test_a_decode_leg_that_waits_for_room_is_not_a_handover_that_hangs() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.ways.full_ones = {"d0"}
    assert desk.dispatch.tick(now=31.9) == []
    assert replies(desk.dispatch.tick(now=32.1)) == [error("r")]


def test_a_handover_that_hangs_with_no_other_prefill_is_computed_by_decode() -> None:
    desk = Desk(alone=True).decoding()
    actions = desk.dispatch.tick(now=12.1)
    assert sends(actions)[-1] == ("d0", "ADD w:4:0:r")


def test_b05_what_decode_has_read_after_the_lease_is_not_believed() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.ways.expiries["p0"] += 1
    actions = desk.hear("d0", wire.Output("d:2:0:r", [7]), now=33.0)
    assert actions[0] == Tainted("d0"), "it lies in its prefix cache"
    assert actions[1] == Miss(("p0", "d0"), False, "the lease of its handle on p0 ran out")
    assert ("d0", "ABORT d:2:0:r") in sends(actions)
    assert sends(actions)[-1][1] == "ADD p:4:0:r"
    again = [a for a in actions if isinstance(a, Send)][-1]
    assert wire.decode_add(again.payload).cache_salt == "anew-d:2:0:r", "out of no cache"
    assert replies(actions) == []


@pytest.mark.parametrize(("now", "expired"), [(31.0, 1), (33.0, 0)])
def test_b05_a_lease_that_was_kept_or_renewed_is_believed(now: float, expired: int) -> None:
    desk = Desk(*SQUARE).decoding()
    desk.ways.expiries["p0"] += expired
    assert replies(desk.hear("d0", wire.Output("d:2:0:r", [7]), now=now)) != []


def test_what_waits_for_a_transfer_over_a_link_that_goes_down_takes_another() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.links.remove(("p0", "d0"))
    actions = desk.dispatch.link_lost(("p0", "d0"), "link p0→d0 is stale", now=3.0)
    assert sends(actions)[0] == ("d0", "ABORT d:2:0:r")
    assert notes(actions) == ["r: link p0→d0 is stale; begun again over p1→d1"]


def test_what_waited_for_a_transfer_goes_to_another_decode_engine_rather() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.links.remove(("p0", "d0"))
    for _ in range(4):  # d0 would be the next in turn
        desk.dispatch.policy.choose([("p0", "d1")], {})
    actions = desk.dispatch.link_lost(("p0", "d0"), "stale", now=3.0)
    assert notes(actions)[0].endswith("→d1")


def test_a_handle_that_nobody_can_give_back_yet_is_given_back_when_somebody_can() -> None:
    desk = Desk()
    desk.links, links = [], desk.links
    assert desk.hear("p0", prefilled("p:0:0:r")) == [], "of an earlier controller; no link works"
    assert sends(desk.dispatch.tick(now=4.0)) == []
    desk.links = links
    assert sends(desk.dispatch.tick(now=5.0)) == [("d0", "ADD r:1:-1:d0"), ("d0", "ADD n:2:-1:d0")]
    assert sends(desk.dispatch.tick(now=6.0)) == [], "once"


@pytest.mark.parametrize("heard", [True, False], ids=["it has heard", "it has not"])
def test_a_handle_that_an_engine_was_told_to_give_back_is_anothers_to_give_back_if_it_dies(
    heard: bool,
) -> None:
    desk = Desk(*SQUARE).decoding()
    desk.dispatch.abort(0, ["r"], now=3.0)
    if heard:  # the nudge that followed the abort has been answered
        desk.hear("d0", wire.Output("n:3:-1:d0", [0], finish_reason=wire.LENGTH))
    without(desk, "d0")
    desk.dispatch.instance_lost("d0", "cut", now=4.0, may_return=True)
    sent = sends(desk.dispatch.instance_lost("d0", "dead", now=9.0))
    assert [what[:5] for _, what in sent] == ([] if heard else ["ADD r", "ADD n"])
    assert {where for where, _ in sent} <= {"d1"}


def test_a_release_that_died_with_its_engine_is_made_again_through_another() -> None:
    desk = Desk(*SQUARE).started()
    desk.dispatch.abort(0, ["r"], now=2.0)
    ((first, _), _) = sends(desk.hear("p0", prefilled("p:1:0:r"), now=3.0))
    without(desk, first)
    desk.dispatch.instance_lost(first, "dead", now=4.0)
    ((second, what), _) = sends(desk.dispatch.tick(now=5.0))
    assert second != first
    assert what.startswith("ADD r")


def test_a_handle_is_owed_no_longer_than_its_lease() -> None:
    desk = Desk()
    desk.links, links = [], desk.links
    desk.hear("p0", prefilled("p:0:0:r"))
    desk.dispatch.tick(now=3.0 + LEASE_S)
    desk.links = links
    assert sends(desk.dispatch.tick(now=4.0 + LEASE_S)) == []


def test_what_has_arrived_stays_when_its_link_goes_down() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    assert desk.dispatch.link_lost(("p0", "d0"), "stale", now=4.0) == []


# -- after the first byte -----------------------------------------------------------------------


def test_the_answer_of_a_decode_engine_that_dies_goes_on_on_another() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    desk.hear("d0", wire.Output("d:2:0:r", [8, 9]))
    without(desk, "d0")
    actions = desk.dispatch.instance_lost("d0", "dead", now=4.0)
    (where, _) = sends(actions)[0]
    asked = asked_of(actions, where)
    assert prompt_of(asked) == [*PROMPT, 7, 8, 9]
    assert notes(actions) == [f"r: d0 is gone: dead; continued after 3 tokens over {where}→d1"]
    decode = desk.hear(where, prefilled("p:3:0:r", token=10), now=5.0)
    assert (asked_of(decode, "d1").sampling_params or {})["max_tokens"] == 8 - 3
    (first,) = replies(
        desk.hear("d1", wire.Output("d:4:0:r", [10], prefill_stats=wire.raw({"a": 1})), now=6.0)
    )
    assert first == wire.Output("r", [10]), "the client has its prefill statistics already"
    assert (desk.dispatch.counts.continued, desk.dispatch.counts.output_tokens) == (1, 4)


def test_a_token_told_ahead_counts_among_what_the_client_has() -> None:
    desk = Desk(*SQUARE).decoding(**PLAIN)
    without(desk, "p0")
    actions = desk.dispatch.instance_lost("p0", "dead", now=3.0)
    assert prompt_of(asked_of(actions, "p1")) == [*PROMPT, 7]
    again = desk.hear("p1", prefilled("p:4:0:r", token=8), now=4.0)
    assert replies(again) == [wire.Output("r", [8])], "told ahead again"
    (first,) = replies(desk.hear("d0", wire.Output("d:5:0:r", [8, 9]), now=5.0))
    assert first.new_token_ids == [9]


def test_an_answer_that_lacks_one_token_is_finished_by_prefill() -> None:
    desk = Desk(*SQUARE).decoding(max_tokens=3)
    desk.hear("d0", wire.Output("d:2:0:r", [7, 8]))
    without(desk, "d0")
    actions = desk.dispatch.instance_lost("d0", "dead", now=4.0)
    assert [what for _, what in sends(actions)] == ["ADD w:3:0:r"]


@pytest.mark.parametrize("options", [{"seed": 5, "temperature": 0.7}, {"presence_penalty": 1.0}])
def test_an_answer_that_cannot_be_continued_ends_in_an_error_that_says_why(
    options: dict[str, Any],
) -> None:
    desk = Desk(*SQUARE).decoding(**options)
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    without(desk, "d0")
    actions = desk.dispatch.instance_lost("d0", "dead", now=4.0)
    assert replies(actions) == [error("r")]
    assert "not to be continued: " in notes(actions)[-1]


def test_the_same_request_with_nothing_sent_yet_is_begun_again() -> None:
    desk = Desk(*SQUARE).decoding(presence_penalty=1.0)
    without(desk, "d0")
    assert replies(desk.dispatch.instance_lost("d0", "dead", now=4.0)) == []
    assert desk.dispatch.counts.redone == 1


def test_an_answer_is_not_continued_for_ever() -> None:
    desk = Desk(*SQUARE).decoding(max_tokens=1000)
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    told: list[wire.Output] = []
    deaths = 0
    while not told:
        (at,) = desk.loads
        told = replies(desk.dispatch.instance_lost(at, "dead", now=4.0))
        deaths += 1
    assert told == [error("r")]
    assert deaths == MOVES + 1


def test_what_a_lost_engine_still_says_of_a_continued_answer_reaches_nobody() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    links = desk.links
    without(desk, "d0")
    desk.dispatch.instance_lost("d0", "cut", now=4.0, may_return=True)
    desk.links = links
    assert abort("d0", "d:2:0:r") in desk.dispatch.instance_back("d0", now=5.0)
    assert desk.hear("d0", wire.Output("d:2:0:r", [8, 9])) == []


@pytest.mark.parametrize("given_up", [True, False])
def test_what_was_given_back_without_a_decode_engine_that_returns_it_may_have_read_too_late(
    given_up: bool,
) -> None:
    desk = Desk(*SQUARE).decoding()
    links = desk.links
    without(desk, "d0")
    desk.dispatch.instance_lost("d0", "cut", now=4.0, may_return=True)
    if given_up:
        ((where, what), _) = sends(desk.dispatch.instance_lost("d0", "silent", now=9.0))
        assert (where, what[:5]) == ("d1", "ADD r"), "prefill may use these blocks for others now"
    desk.links = links
    actions = desk.dispatch.instance_back("d0", now=10.0)
    assert actions[0] == abort("d0", "d:2:0:r")
    assert (Tainted("d0") in actions) is given_up
    assert Tainted("d0") not in desk.dispatch.instance_back("d0", now=11.0), "once"


def test_what_a_decode_engine_had_read_before_it_was_given_up_is_believed() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    desk.dispatch.instance_lost("d0", "silent", now=9.0)
    assert Tainted("d0") not in desk.dispatch.instance_back("d0", now=10.0)


def test_another_engine_core_in_the_place_has_read_nothing() -> None:
    desk = Desk(*SQUARE).decoding()
    desk.dispatch.instance_lost("d0", "dead", now=9.0)
    desk.dispatch.instance_renewed("d0")
    assert Tainted("d0") not in desk.dispatch.instance_back("d0", now=10.0)


def test_a_mismatch_is_computed_anew_out_of_no_cache_and_nothing_of_it_is_passed_on() -> None:
    desk = Desk(*SQUARE).decoding()
    actions = desk.hear("d0", wire.Output("d:2:0:r", [99]))
    assert actions[0] == Beat(("p0", "d0"), 2.0, False, False)
    assert sends(actions) == [
        ("d0", "ABORT d:2:0:r"),
        ("d0", "ADD n:3:-1:d0"),
        ("d0", "ADD w:4:0:r"),
    ]

    asked = wire.decode_add([a for a in actions if isinstance(a, Send)][-1].payload)
    assert asked.cache_salt == "anew-d:2:0:r"
    assert replies(actions) == []
    assert replies(desk.hear("d0", wire.Output("w:4:0:r", [7]))) == [wire.Output("r", [7])]


# -- held ---------------------------------------------------------------------------------------


def test_prefill_is_not_asked_for_more_than_decode_can_take() -> None:
    desk = Desk()
    desk.ways.slots_each = 2
    for name in "abcd":
        desk.dispatch.add(0, request(name), (), now=1.0)
    assert desk.loads == {"p0": 3}, "as many as run at once, and one ahead"
    desk.hear("p0", prefilled("p:1:0:a"))
    done = wire.Output("d:4:0:a", [7], finish_reason=wire.STOP)
    assert ("p0", "ADD p:5:0:d") in sends(desk.hear("d0", done, now=4.0))


def test_a_full_decode_engine_gets_nothing_until_it_has_room() -> None:
    desk = Desk(*SQUARE)
    desk.started("a")
    desk.ways.full_ones = {"d0", "d1"}
    sent = sends(desk.dispatch.add(0, request("b"), (), now=2.0))
    assert [where for where, _ in sent] == ["p1"], "an idle engine's word is old"
    assert sends(desk.dispatch.add(0, request("c"), (), now=2.0)) == []
    desk.ways.full_ones = set()
    assert [what for _, what in sends(desk.dispatch.tick(now=3.0))] == ["ADD p:3:0:c"]


def test_held_requests_go_in_the_order_in_which_they_came() -> None:
    desk = Desk()
    desk.links, links = [], desk.links
    desk.ways.hope = True
    for name in "abc":
        assert sends(desk.dispatch.add(0, request(name), (), now=1.0)) == []
    desk.links = links
    sent = sends(desk.dispatch.links_changed(now=2.0))
    assert sent == [("p0", "ADD p:1:0:a"), ("p0", "ADD p:2:0:b"), ("p0", "ADD p:3:0:c")]


def test_hope_has_an_end() -> None:
    desk = Desk()
    desk.links = []
    desk.ways.hope = True
    desk.dispatch.add(0, request("r"), (), now=1.0)
    assert desk.dispatch.tick(now=1.0 + HOPE_S) == []
    actions = desk.dispatch.tick(now=1.1 + HOPE_S)
    assert replies(actions) == [error("r")]
    assert "no working link" in notes(actions)[0]


def test_hope_does_not_end_while_we_are_stopped_ourselves() -> None:
    desk = Desk()
    desk.ways.slots_each = 1
    for name in "abc":
        desk.dispatch.add(0, request(name), (), now=1.0)
    desk.links = []
    desk.ways.hope = True
    desk.dispatch.links_changed(now=11.0)  # "c" has waited for its turn, and now hopes
    desk.dispatch.paused(HOPE_S, now=12.0 + HOPE_S)
    assert replies(desk.dispatch.tick(now=12.0 + HOPE_S)) == []
    assert replies(desk.dispatch.tick(now=11.1 + 2 * HOPE_S)) == [error("c")]


def test_without_hope_a_held_request_ends_at_once() -> None:
    desk = Desk()
    desk.links = []
    desk.ways.hope = True
    desk.dispatch.add(0, request("r"), (), now=1.0)
    desk.ways.hope = False
    assert replies(desk.dispatch.links_changed(now=1.5)) == [error("r")]


def test_a_held_request_can_be_aborted() -> None:
    desk = Desk()
    desk.links = []
    desk.ways.hope = True
    desk.dispatch.add(0, request("r"), (), now=1.0)
    assert desk.dispatch.abort(0, ["r"], now=2.0) == []
    assert (desk.dispatch.users_in_flight, desk.dispatch.counts.aborted) == (0, 1)


# -- taken over from an earlier controller ------------------------------------------------------


def test_an_adopted_request_that_had_begun_goes_on_after_its_last_token() -> None:
    desk = Desk()
    actions = desk.dispatch.adopt(0, request("r"), (), [7, 8], begun=True, now=1.0)
    assert prompt_of(asked_of(actions, "p0")) == [*PROMPT, 7, 8]
    assert desk.dispatch.counts.continued == 1


def test_an_adopted_request_that_had_not_begun_is_begun() -> None:
    desk = Desk()
    assert sends(desk.dispatch.adopt(0, request("r"), (), [], begun=False, now=1.0)) == [
        ("p0", "ADD p:1:0:r")
    ]
    assert desk.dispatch.counts.redone == 0


def test_an_adopted_answer_that_cannot_be_continued_ends_in_an_error() -> None:
    desk = Desk()
    asked = request("r", {"seed": 4})
    actions = desk.dispatch.adopt(0, asked, (), [7], begun=True, now=1.0)
    assert replies(actions) == [error("r")]
    assert desk.dispatch.users_in_flight == 0


def test_adopted_requests_wait_for_the_engines_to_be_back() -> None:
    desk = Desk()
    desk.links, links = [], desk.links
    desk.ways.hope = True
    assert sends(desk.dispatch.adopt(0, request("r"), (), [7], begun=True, now=1.0)) == []
    desk.links = links
    (sent,) = [a for a in desk.dispatch.links_changed(now=1.2) if isinstance(a, Send)]
    assert prompt_of(wire.decode_add(sent.payload)) == [*PROMPT, 7]


def test_decode_does_not_compute_prompts_while_engines_are_just_coming_back() -> None:
    desk = Desk(alone=True)
    desk.links, links = [], desk.links
    desk.ways.alone, desk.ways.coming = ["d0"], True
    assert sends(desk.dispatch.add(0, request("r"), (), now=1.0)) == []
    desk.links, desk.ways.coming = links, False
    assert sends(desk.dispatch.links_changed(now=1.2)) == [("p0", "ADD p:1:0:r")]


def test_legs_of_an_earlier_controller_are_stopped_on_sight_and_their_handles_released() -> None:
    desk = Desk()
    assert desk.hear("d0", wire.Output("d:0:0:r", [7])) == [abort("d0", "d:0:0:r")]
    assert desk.hear("d0", wire.Output("d:0:0:r", [7], finish_reason=wire.STOP)) == []
    late = desk.hear("p0", prefilled("p:0:0:r"))
    assert sends(late) == [("d0", "ADD r:1:-1:d0"), ("d0", "ADD n:2:-1:d0")]
