"""A request's way as events in and actions out, compared literally."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.messages import GREEDY, abort, add, handle, outputs, prefilled, request, sends
from fakes.ways import FakeWays
from vdisagg.control import wire
from vdisagg.control.actions import Action, Beat, Miss, Note, Pair, Reply, Tainted
from vdisagg.control.dispatch import MAX_ID, Dispatch, Limits
from vdisagg.control.dummies import alone_request, nudge_request, probe_request, release_request
from vdisagg.control.flight import PROBE
from vdisagg.control.handover import Nixl
from vdisagg.control.routing import FewestInFlight

LIMIT_S = 30.0


class Desk:
    """A Dispatch whose links a test can change; sequence numbers of legs count from 1."""

    def __init__(self, *links: Pair, alone: bool = False) -> None:
        """`alone`: whether decode engines may compute prompts themselves."""
        self.links: list[Pair] = list(links or [("p0", "d0")])
        self.ways = FakeWays(lambda: self.links)
        limits = Limits(request_s=LIMIT_S, handover_s=10.0, lease_s=30.0, decode_alone=alone)
        self.dispatch = Dispatch(Nixl(), FewestInFlight(), self.ways, 0, limits)

    def started(self, name: str = "r", now: float = 1.0, **sampling: Any) -> Desk:
        """With a request under way on its first leg."""
        self.dispatch.add(0, request(name, {**GREEDY, **sampling}), (), now=now)
        return self

    def decoding(self, name: str = "r", **sampling: Any) -> Desk:
        """With a request whose decode leg has been sent, as d:2."""
        self.started(name, **sampling)
        self.dispatch.outputs("p0", outputs(prefilled(f"p:1:0:{name}")), (), now=2.0)
        return self

    def hear(self, instance: str, *given: wire.Output, now: float = 3.0) -> list[Action]:
        """An engine's step."""
        return self.dispatch.outputs(instance, outputs(*given), (), now=now)

    @property
    def loads(self) -> dict[str, int]:
        """Legs in flight, without zeros."""
        return {name: count for name, count in self.dispatch.in_flight.items() if count}


def error(name: str) -> wire.Output:
    """What a front end is told of a request that ends in an error."""
    return wire.Output(name, [], finish_reason=wire.ERROR)


def test_the_whole_life_of_a_request() -> None:
    desk = Desk()
    dispatch = desk.dispatch
    frames = [b"tensor"]
    sampling = {"temperature": 0.0, "max_tokens": 3, "stop": ["x"], "extra_args": {"mine": 1}}
    asked = request("r", sampling, client_index=2, data_parallel_rank=0, external_req_id="client")

    assert dispatch.add(2, asked, frames, now=1.0) == [
        add(
            "p0",
            request(
                "p:1:2:r",
                {
                    "temperature": 0.0,
                    "max_tokens": 1,
                    "extra_args": {"mine": 1, "kv_transfer_params": Nixl.REMOTE_DECODE},
                    "n": 1,
                    "min_tokens": 0,
                    "ignore_eos": True,
                },
            ),
            frames,
        )
    ]
    assert (desk.loads, dispatch.users_in_flight, dispatch.handles_held) == ({"p0": 1}, 1, 0)

    assert dispatch.outputs("p0", outputs(prefilled("p:1:2:r")), (), now=2.0) == [
        add(
            "d0",
            request(
                "d:2:2:r",
                {
                    **sampling,
                    "extra_args": {"mine": 1, "kv_transfer_params": handle("p:1:2:r")},
                },
            ),
            frames,
        )
    ]
    assert (desk.loads, dispatch.users_in_flight, dispatch.handles_held) == ({"d0": 1}, 1, 1)

    cached = wire.raw({"num_cached_tokens": 99})
    first = wire.Output("d:2:2:r", [7], prefill_stats=cached, kv_transfer_params=wire.raw({"a": 1}))
    assert dispatch.outputs("d0", outputs(first), [b"logprobs"], now=4.0) == [
        Beat(("p0", "d0"), latency_s=3.0, probe=False, matched=True),
        Reply(
            2,
            [wire.Output("r", [7], prefill_stats=wire.raw({"num_cached_tokens": 2}))],
            timestamp=50.0,
            frames=[b"logprobs"],
        ),
    ]
    assert (desk.loads, dispatch.handles_held) == ({"d0": 1}, 0)

    last = wire.Output("d:2:2:r", [8, 9], finish_reason=wire.STOP, stop_reason=wire.raw("x"))
    assert dispatch.outputs("d0", outputs(last), (), now=5.0) == [
        Reply(
            2,
            [wire.Output("r", [8, 9], finish_reason=wire.STOP, stop_reason=wire.raw("x"))],
            timestamp=50.0,
        )
    ]
    assert (desk.loads, dispatch.users_in_flight) == ({}, 0)
    counts = dispatch.counts
    assert (counts.received, counts.finished, counts.failed, counts.aborted) == (1, 1, 0, 0)
    assert counts.output_tokens == 3


# -- requests of one leg ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "at"),
    [
        ({"temperature": 0.0, "max_tokens": 1}, "p0"),
        ({"max_tokens": 5, "prompt_logprobs": 0}, "d0"),
        ({"max_tokens": 1, "prompt_logprobs": 0}, "d0"),
        ({"max_tokens": 5, "prompt_logprob_token_ids": [1]}, "d0"),
        (None, "d0"),
    ],
)
def test_some_requests_take_one_leg_without_a_transfer(
    sampling: dict[str, Any] | None, at: str
) -> None:
    desk = Desk()
    assert desk.dispatch.add(0, request("r", sampling), (), now=1.0) == [
        add(at, request("w:1:0:r", sampling))
    ]
    assert desk.hear(at, wire.Output("w:1:0:r", [5], finish_reason=wire.LENGTH)) == [
        Reply(0, [wire.Output("r", [5], finish_reason=wire.LENGTH)], timestamp=50.0)
    ]
    assert desk.loads == {}


def test_a_request_that_says_nothing_of_max_tokens_takes_both_legs() -> None:
    """vLLM leaves out what has its default: 16."""
    desk = Desk()
    assert sends(desk.dispatch.add(0, request("r", {}), (), now=1.0)) == [("p0", "ADD p:1:0:r")]


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "links", "why"),
    [
        (request("r"), [], "no working link between a prefill and a decode instance"),
        (request("r" * (MAX_ID + 1)), None, "its id is longer than 1024 characters"),
        (request("r", resumable=True), None, "streaming input is not served"),
    ],
    ids=["no link", "long id", "resumable"],
)
def test_what_cannot_be_served_ends_in_an_error_at_once(
    asked: wire.AddRequest, links: list[Pair] | None, why: str
) -> None:
    desk = Desk()
    desk.links = desk.links if links is None else links
    note, reply = desk.dispatch.add(0, asked, (), now=1.0)
    assert isinstance(note, Note)
    assert why in note.what
    assert reply == Reply(0, [error(asked.request_id)], 0.0)
    assert (desk.dispatch.counts.received, desk.dispatch.counts.failed) == (1, 1)
    assert desk.dispatch.users_in_flight == 0


def test_a13_a_second_live_request_of_one_id_ends_both() -> None:
    desk = Desk().started("r")
    assert desk.dispatch.add(0, request("r"), (), now=2.0) == [
        abort("p0", "p:1:0:r"),
        Note("request", "r: its id is in use"),
        Reply(0, [error("r")], 0.0),
    ]
    assert (desk.loads, desk.dispatch.users_in_flight) == ({}, 0)


def test_two_api_servers_may_use_one_id() -> None:
    desk = Desk().started("r")
    assert sends(desk.dispatch.add(1, request("r"), (), now=2.0)) == [("p0", "ADD p:2:1:r")]
    desk.hear("p0", prefilled("p:2:1:r"), prefilled("p:1:0:r"))
    answers = desk.hear("d0", wire.Output("d:3:1:r", [7]), wire.Output("d:4:0:r", [7]))
    assert [a.api for a in answers if isinstance(a, Reply)] == [1, 0]


def test_a_note_shows_an_id_on_one_line_and_not_at_full_length() -> None:
    desk = Desk()
    desk.links = []
    note, _ = desk.dispatch.add(0, request("a\nb\x1b[1m" + "x" * 500), (), now=1.0)
    assert isinstance(note, Note)
    assert note.what.startswith("a?b?[1mxxx")
    assert len(note.what) < 200


def test_a_request_that_cannot_be_read_is_counted_and_answered() -> None:
    desk = Desk()
    assert desk.dispatch.refuse(1, "r", "why") == [
        Note("request", "r: why"),
        Reply(1, [error("r")], 0.0),
    ]
    assert (desk.dispatch.counts.received, desk.dispatch.counts.failed) == (1, 1)


# -- aborts -------------------------------------------------------------------------------------


def nudge(instance: str, number: int, now: float) -> Action:
    """The dummy request that makes an engine step."""
    return add(instance, nudge_request(f"n:{number}:{PROBE}:{instance}", now=now))


def test_an_abort_during_prefill_goes_to_prefill() -> None:
    desk = Desk().started()
    assert desk.dispatch.abort(0, ["r"], now=2.0) == [abort("p0", "p:1:0:r")]
    assert (desk.loads, desk.dispatch.counts.aborted) == ({}, 1)


def test_b01_a_handle_that_crosses_an_abort_is_released_and_decode_nudged() -> None:
    desk = Desk().started()
    desk.dispatch.abort(0, ["r"], now=2.0)
    late = prefilled("p:1:0:r")
    release = release_request("r:2:-1:d0", late.kv_transfer_params, now=3.0)
    assert release.abort_immediately
    assert release.sampling_params == {
        "temperature": 0.0,
        "max_tokens": 1,
        "ignore_eos": True,
        "extra_args": {"kv_transfer_params": late.kv_transfer_params},
    }
    assert desk.hear("p0", late) == [add("d0", release), nudge("d0", 3, 3.0)]
    assert desk.hear("p0", prefilled("p:1:0:r")) == [], "once"


def test_b01_an_abort_before_decodes_first_token_is_followed_by_a_nudge() -> None:
    desk = Desk().decoding()
    assert desk.dispatch.abort(0, ["r"], now=3.0) == [abort("d0", "d:2:0:r"), nudge("d0", 3, 3.0)]
    assert (desk.loads, desk.dispatch.handles_held) == ({}, 0)


def test_an_abort_after_decodes_first_token_needs_no_nudge() -> None:
    desk = Desk().decoding()
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    assert desk.dispatch.abort(0, ["r"], now=3.0) == [abort("d0", "d:2:0:r")]


def test_an_abort_of_what_has_ended_or_is_anothers_is_ignored() -> None:
    desk = Desk().started()
    assert desk.dispatch.abort(1, ["r"], now=2.0) == []
    assert desk.dispatch.abort(0, ["never"], now=2.0) == []
    assert desk.dispatch.abort(0, ["r", "r"], now=2.0) == [abort("p0", "p:1:0:r")]
    assert desk.dispatch.counts.aborted == 1


def test_what_an_engine_still_says_of_an_aborted_request_reaches_nobody() -> None:
    desk = Desk().decoding()
    desk.dispatch.abort(0, ["r"], now=3.0)
    assert desk.hear("d0", wire.Output("d:2:0:r", [7], finish_reason=wire.ABORTED)) == []
    assert desk.dispatch.counts.output_tokens == 0


def test_an_abandoned_leg_is_forgotten_when_its_lease_has_ended() -> None:
    desk = Desk().started()
    desk.dispatch.abort(0, ["r"], now=2.0)
    desk.dispatch.tick(now=62.0)
    assert desk.hear("p0", prefilled("p:1:0:r"), now=62.0) == []


def test_nudges_do_not_pile_up_on_a_hung_engine() -> None:
    desk = Desk()
    assert desk.dispatch.nudge("d0", now=1.0) == [nudge("d0", 1, 1.0)]
    for _ in range(5):
        assert desk.dispatch.nudge("d0", now=2.0) == []
    done = wire.Output("n:1:-1:d0", [0], finish_reason=wire.LENGTH)
    assert desk.hear("d0", done) == [nudge("d0", 2, 3.0)], "one more: it may have come too late"
    done = wire.Output("n:2:-1:d0", [0], finish_reason=wire.LENGTH)
    assert desk.hear("d0", done) == []


def test_a_front_end_that_goes_takes_its_requests_along_and_leaves_the_probes() -> None:
    desk = Desk().started("a").started("b")
    probe = probe_request("p0-d0", [1] * 20, max_tokens=2, salt="s", now=0.0)
    desk.dispatch.probe(("p0", "d0"), probe, now=1.0)
    assert desk.dispatch.front_lost(now=2.0) == [abort("p0", "p:1:0:a"), abort("p0", "p:2:0:b")]
    assert (desk.loads, desk.dispatch.counts.aborted) == ({"p0": 1}, 2)


# -- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [wire.ERROR, wire.ABORTED])
def test_c04_prefills_failure_is_the_clients_and_decode_never_hears_of_it(reason: int) -> None:
    """With no other link, and decode not to compute prompts, there is nowhere else to go."""
    desk = Desk().started()
    missed = wire.raw(["hash"])
    output = wire.Output("p:1:0:r", [], finish_reason=reason, mm_cache_miss_hashes=missed)
    assert desk.hear("p0", output) == [
        Note("request", "r: p0 ended the prefill leg without a handle"),
        Reply(
            0, [wire.Output("r", [], finish_reason=wire.ERROR, mm_cache_miss_hashes=missed)], 0.0
        ),
    ]
    assert (desk.loads, desk.dispatch.counts.failed) == ({}, 1)


def test_a_prefill_leg_without_a_handle_is_an_error_and_no_silent_recompute() -> None:
    desk = Desk().started()
    _, reply = desk.hear("p0", prefilled("p:1:0:r", kv_transfer_params=wire.NIL))
    assert reply == Reply(0, [error("r")], 0.0)


def test_decodes_failure_ends_the_request_and_is_a_miss_of_the_link() -> None:
    desk = Desk().decoding()
    what = "d0 ended the decode leg with an error"
    assert desk.hear("d0", wire.Output("d:2:0:r", [], finish_reason=wire.ABORTED)) == [
        Note("d0", f"request r: {what}"),
        Miss(("p0", "d0"), False, what),
        Note("request", f"r: {what}"),
        Reply(0, [error("r")], 0.0),
    ]
    assert (desk.loads, desk.dispatch.counts.failed) == ({}, 1)


@pytest.mark.parametrize(
    ("sampling", "token", "matched"),
    [
        ({}, 7, True),
        ({}, 8, False),
        ({"temperature": 0.7}, 8, None),
        ({"min_tokens": 3}, 8, None),
    ],
)
def test_a_greedy_request_compares_prefills_token_with_decodes(
    sampling: dict[str, Any], token: int, matched: bool | None
) -> None:
    desk = Desk().decoding(**sampling)
    beat, *_ = desk.hear("d0", wire.Output("d:2:0:r", [token]))
    assert beat == Beat(("p0", "d0"), 2.0, False, matched)


# -- deaths -------------------------------------------------------------------------------------

BOTH = (("p0", "d0"), ("p0", "d1"))


def test_c04_the_death_of_the_engine_that_works_on_a_request_ends_it_at_once() -> None:
    desk = Desk().started()
    assert desk.dispatch.instance_lost("p0", "exit code 1", now=2.0) == [
        Note("request", "r: p0 is gone: exit code 1"),
        Reply(0, [error("r")], 0.0),
    ]
    assert (desk.loads, desk.dispatch.users_in_flight) == ({}, 0)


def test_the_death_of_decode_during_prefill_sends_the_request_to_another() -> None:
    desk = Desk(*BOTH).started()
    desk.links.remove(("p0", "d0"))
    assert desk.dispatch.instance_lost("d0", "dead", now=2.0) == []
    assert sends(desk.hear("p0", prefilled("p:1:0:r"))) == [("d1", "ADD d:2:0:r")]
    beat, _ = desk.hear("d1", wire.Output("d:2:0:r", [7]))
    assert isinstance(beat, Beat)
    assert beat.link == ("p0", "d1")


def test_the_death_of_the_only_decode_instance_during_prefill_ends_the_request() -> None:
    desk = Desk().started()
    desk.links.clear()
    actions = desk.hear("p0", prefilled("p:1:0:r"))
    # It may be that only the link is bad: the release is tried.
    assert sends(actions) == [("d0", "ADD r:2:-1:d0"), ("d0", "ADD n:3:-1:d0")]
    assert actions[2:] == [
        Note("request", "r: no working link from p0 to a decode instance"),
        Reply(0, [error("r")], 0.0),
    ]


def test_the_death_of_prefill_before_decode_has_read_ends_the_request() -> None:
    desk = Desk().decoding()
    assert desk.dispatch.instance_lost("p0", "dead", now=3.0) == [
        abort("d0", "d:2:0:r"),
        nudge("d0", 3, 3.0),
        Note("request", "r: p0 is gone: dead"),
        Reply(0, [error("r")], 0.0),
    ]


def test_the_death_of_prefill_after_decode_has_read_harms_nobody() -> None:
    desk = Desk().decoding()
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    assert desk.dispatch.instance_lost("p0", "dead", now=3.0) == []
    assert desk.dispatch.users_in_flight == 1


def test_the_death_of_decode_with_a_handle_unread_releases_it_through_another() -> None:
    desk = Desk(*BOTH).decoding()
    desk.links.remove(("p0", "d0"))
    actions = desk.dispatch.instance_lost("d0", "dead", now=3.0)
    again, *release = sends(actions)
    assert again == ("p0", "ADD p:3:0:r"), "a handle is read by one decode engine, and no other"
    assert release == [("d1", "ADD r:4:-1:d1"), ("d1", "ADD n:5:-1:d1")]
    assert desk.dispatch.instance_lost("d0", "dead", now=3.0) == [], "once"


def test_the_death_of_the_last_decode_instance_leaves_the_handle_to_its_lease() -> None:
    desk = Desk().decoding()
    desk.links.clear()
    assert sends(desk.dispatch.instance_lost("d0", "dead", now=3.0)) == []


def test_an_engine_that_comes_back_stops_what_nobody_waits_for() -> None:
    desk = Desk(*BOTH).decoding()
    desk.links.remove(("p0", "d0"))
    lost = desk.dispatch.instance_lost("d0", "cut", now=3.0, may_return=True)
    assert sends(lost) == [("p0", "ADD p:3:0:r")], "it may have read the handle, or be about to"
    abort_, *release = desk.dispatch.instance_back("d0", now=4.0)
    assert abort_ == abort("d0", "d:2:0:r")
    assert sends(release)[:2] == [("d1", "ADD r:4:-1:d1"), ("d1", "ADD n:5:-1:d1")], (
        "the leg may never have reached it"
    )
    assert desk.dispatch.instance_lost("d0", "dead", now=5.0) == []


def test_an_engine_that_does_not_come_back_has_its_handles_released_then() -> None:
    desk = Desk(*BOTH).decoding()
    desk.links.remove(("p0", "d0"))
    desk.dispatch.instance_lost("d0", "cut", now=3.0, may_return=True)
    actions = desk.dispatch.instance_lost("d0", "dead", now=8.0)
    assert sends(actions) == [("d1", "ADD r:4:-1:d1"), ("d1", "ADD n:5:-1:d1")]


def test_the_death_of_an_engine_is_the_end_of_its_nudge() -> None:
    desk = Desk()
    desk.dispatch.nudge("d0", now=1.0)
    desk.dispatch.nudge("d0", now=1.0)
    desk.dispatch.instance_lost("d0", "dead", now=2.0)
    assert desk.dispatch.nudge("d0", now=3.0) == [nudge("d0", 2, 3.0)]


# -- deadlines ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "leg", "at"), [("started", "p:1:0:r", "p0"), ("decoding", "d:2:0:r", "d0")]
)
def test_a_leg_without_output_within_the_limit_fails_its_request(
    stage: str, leg: str, at: str
) -> None:
    desk = Desk()
    desk.ways.full_ones = {"d0"}  # a decode leg that has no room is no transfer that hangs
    getattr(desk, stage)()
    began = 1.0 if stage == "started" else 2.0
    assert desk.dispatch.tick(now=began + LIMIT_S) == []
    actions = desk.dispatch.tick(now=began + LIMIT_S + 0.1)
    assert actions[0] == abort(at, leg)
    assert len(sends(actions)) == (1 if stage == "started" else 2)
    name = "prefill" if stage == "started" else "decode"
    assert actions[-2:] == [
        Note("request", f"r: no output of its {name} leg on {at} within 30 s"),
        Reply(0, [error("r")], 0.0),
    ]
    assert desk.loads == {}


def test_a_leg_that_has_begun_may_take_as_long_as_it_likes() -> None:
    desk = Desk().decoding()
    desk.hear("d0", wire.Output("d:2:0:r", [7]))
    assert desk.dispatch.tick(now=1e6) == []


# -- probes -------------------------------------------------------------------------------------

PROBE_REQUEST = probe_request("p0-d0", [1] * 20, max_tokens=2, salt="pepper", now=0.0)


def probing() -> Desk:
    """With a probe under way on its prefill leg."""
    desk = Desk()
    desk.links.clear()  # a probe is what makes a link usable: it needs none
    actions = desk.dispatch.probe(("p0", "d0"), PROBE_REQUEST, now=1.0)
    assert sends(actions) == [("p0", "ADD p:1:-1:p0-d0")]
    return desk


@pytest.mark.parametrize(("token", "matched"), [(7, True), (8, False)])
def test_a_probe_goes_the_whole_way_and_beats_when_nothing_is_left_of_it(
    token: int, matched: bool
) -> None:
    desk = probing()
    (decode,) = desk.hear("p0", prefilled("p:1:-1:p0-d0"))
    assert sends([decode]) == [("d0", "ADD d:2:-1:p0-d0")]
    assert desk.hear("d0", wire.Output("d:2:-1:p0-d0", [token])) == []
    last = wire.Output("d:2:-1:p0-d0", [9], finish_reason=wire.LENGTH)
    assert desk.hear("d0", last, now=4.0) == [Beat(("p0", "d0"), 3.0, True, matched)]
    assert desk.loads == {}


def test_users_counts_know_nothing_of_probes() -> None:
    desk = probing()
    assert desk.dispatch.users_in_flight == 0
    desk.hear("p0", prefilled("p:1:-1:p0-d0"))
    desk.hear("d0", wire.Output("d:2:-1:p0-d0", [7, 8], finish_reason=wire.LENGTH))
    counts = desk.dispatch.counts
    assert (counts.received, counts.finished, counts.output_tokens) == (0, 0, 0)


@pytest.mark.parametrize("name", ["p0", "d0"])
def test_the_death_of_either_end_is_a_miss(name: str) -> None:
    actions = probing().dispatch.instance_lost(name, "dead", now=2.0)
    assert actions[-1] == Miss(("p0", "d0"), True, f"{name} is gone: dead")
    assert not any(isinstance(action, Reply) for action in actions)


def test_a_probe_that_is_late_is_ended_and_a_miss() -> None:
    desk = probing()
    assert desk.dispatch.probes() == {("p0", "d0"): ("p0", 1.0)}
    desk.hear("p0", prefilled("p:1:-1:p0-d0"), now=3.0)
    desk.hear("d0", wire.Output("d:2:-1:p0-d0", [7]), now=4.0)
    assert desk.dispatch.probes() == {("p0", "d0"): ("d0", 4.0)}, "it made progress then"
    assert desk.dispatch.end_probe(("p0", "d1"), now=9.0) == []
    assert desk.dispatch.end_probe(("p0", "d0"), now=9.0) == [
        abort("d0", "d:2:-1:p0-d0"),
        Miss(("p0", "d0"), True, "no more output of its decode leg on d0 for 5.0 s"),
    ]
    assert (desk.loads, desk.dispatch.probes()) == ({}, {})


PROOF = alone_request("p0-d0", [1] * 20, max_tokens=2, salt="salt", now=0.0)


@pytest.mark.parametrize(
    ("alone", "reason"), [([7, 8], ""), ([7, 9], "token 2"), ([6, 8], "token 1")]
)
def test_a_proof_compares_what_came_over_the_link_with_what_decode_computes_alone(
    alone: list[int], reason: str
) -> None:
    desk = Desk()
    desk.dispatch.probe(("p0", "d0"), PROBE_REQUEST, now=1.0, proof=PROOF)
    desk.hear("p0", prefilled("p:1:-1:p0-d0"), now=2.0)
    last = wire.Output("d:2:-1:p0-d0", [7, 8], finish_reason=wire.LENGTH)
    actions = desk.hear("d0", last, now=4.0)
    assert sends(actions) == [("d0", "ADD w:3:-1:p0-d0")]
    desk.hear("d0", wire.Output("w:3:-1:p0-d0", alone[:1]), now=5.0)
    last = wire.Output("w:3:-1:p0-d0", alone[1:], finish_reason=wire.LENGTH)
    *tainted, beat = desk.hear("d0", last, now=6.0)
    assert tainted == ([Tainted("d0")] if reason else [])
    assert isinstance(beat, Beat)
    assert (beat.latency_s, beat.probe, beat.proof) == (3.0, True, True)
    assert beat.matched is (reason == "")
    assert reason in beat.reason
    assert desk.loads == {}


def test_a_probe_that_decode_fails_is_a_miss() -> None:
    desk = probing()
    desk.hear("p0", prefilled("p:1:-1:p0-d0"))
    actions = desk.hear("d0", wire.Output("d:2:-1:p0-d0", [], finish_reason=wire.ERROR))
    assert actions[-1] == Miss(("p0", "d0"), True, "d0 ended the decode leg with an error")
    assert desk.dispatch.counts.failed == 0
