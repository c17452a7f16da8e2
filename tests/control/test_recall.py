"""What entries of a journal leave to be done, out of literal messages."""

from __future__ import annotations

from typing import Any

from fakes.messages import request
from vdisagg.control import wire
from vdisagg.control.entries import INPUT, LEGS, LIVE, OUTPUT, Entry
from vdisagg.control.ledger import OpenLeg
from vdisagg.control.recall import (
    Recall,
    Recalled,
    RecalledRequest,
    SentOutput,
    SentOutputs,
    recall,
)


class Story:
    """Entries, numbered as a journal numbers them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._last: dict[tuple[bytes, int], int] = {}

    def _append(self, what: bytes, api: int, parts: list[bytes]) -> None:
        number = self._last[what, api] = self._last.get((what, api), 0) + 1
        self.entries.append(Entry(what, api, number, parts))

    def add(self, api: int, request_id: str, *frames: bytes) -> bytes:
        payload = wire.encode(request(request_id))
        self._append(INPUT, api, [wire.ADD, payload, *frames])
        return payload

    def abort(self, api: int, *ids: str) -> None:
        self._append(INPUT, api, [wire.ABORT, wire.encode(list(ids))])

    def call(self, api: int, call_id: int, method: str) -> bytes:
        payload = wire.encode((api, call_id, method, ()))
        self._append(INPUT, api, [wire.UTILITY, payload])
        return payload

    def input(self, api: int, *parts: bytes) -> None:
        self._append(INPUT, api, list(parts))

    def out(self, api: int, *outputs: wire.Output, **fields: Any) -> None:
        message = wire.Outputs(outputs=list(outputs), **fields)
        self._append(OUTPUT, api, [wire.encode(message)])

    def legs(self, *notes: list[Any]) -> None:
        self.entries.append(Entry(LEGS, 0, 0, [wire.encode(notes)]))

    def recalled(self) -> Recalled:
        return recall(self.entries)

    def ids(self) -> list[tuple[int, str]]:
        return [(one.api, one.request_id) for one in self.recalled().requests]


def test_nothing_leaves_nothing() -> None:
    assert recall([]) == Recalled()


def test_a_request_without_an_output_is_recalled_as_it_came() -> None:
    story = Story()
    payload = story.add(0, "a", b"tensor", b"")
    assert story.recalled() == Recalled(
        requests=[RecalledRequest(0, "a", payload, [b"tensor", b""], [], False)],
        received={0: 1},
    )


def test_what_was_sent_of_an_answer_is_recalled_in_order() -> None:
    story = Story()
    a, b = story.add(0, "a"), story.add(0, "b")
    story.out(0, wire.Output("a", [7]))
    story.out(0, wire.Output("b", [1]), wire.Output("a", [8, 9]))
    assert story.recalled() == Recalled(
        requests=[
            RecalledRequest(0, "a", a, [], [7, 8, 9], True),
            RecalledRequest(0, "b", b, [], [1], True),
        ],
        received={0: 2},
        sent={0: 2},
    )


def test_an_answer_has_begun_when_anything_of_it_was_sent_if_no_token() -> None:
    story = Story()
    story.add(0, "a")
    story.out(0, wire.Output("a", []))
    assert [(one.emitted, one.begun) for one in story.recalled().requests] == [([], True)]


def test_a_finish_reason_ends_a_request_whatever_it_is() -> None:
    for reason in (wire.STOP, wire.LENGTH, wire.ABORTED, wire.ERROR, wire.REPETITION):
        story = Story()
        story.add(0, "a")
        story.out(0, wire.Output("a", [7], finish_reason=reason))
        assert story.ids() == [], reason


def test_an_abort_ends_the_requests_it_names_and_no_others() -> None:
    story = Story()
    for request_id in "abc":
        story.add(0, request_id)
    story.abort(0, "a", "unknown", "c")
    assert story.ids() == [(0, "b")]
    story.out(0, wire.Output("a", [7]))  # on its way when the abort came
    assert story.ids() == [(0, "b")]


def test_requests_come_in_the_order_of_arrival_over_all_api_servers() -> None:
    story = Story()
    for api, request_id in ((1, "a"), (0, "a"), (2, "b"), (0, "c")):
        story.add(api, request_id)
    story.out(0, wire.Output("a", [7]))
    assert story.ids() == [(1, "a"), (0, "a"), (2, "b"), (0, "c")]


def test_equal_ids_of_two_api_servers_are_two_requests() -> None:
    story = Story()
    story.add(0, "a")
    story.add(1, "a")
    story.out(1, wire.Output("a", [7]))
    story.out(0, wire.Output("a", [8], finish_reason=wire.STOP))
    story.abort(0, "a")
    assert [(one.api, one.emitted) for one in story.recalled().requests] == [(1, [7])]


def test_a_refused_id_in_use_leaves_none_of_both() -> None:
    story = Story()
    story.add(0, "a")
    story.add(0, "a")
    story.out(0, wire.Output("a", [], finish_reason=wire.ERROR))
    assert story.ids() == []


def test_a_call_waits_until_its_api_server_has_its_answer() -> None:
    story = Story()
    first, second = story.call(0, 77, "list_loras"), story.call(1, 77, "sleep")
    third = story.call(0, 78, "reset_mm_cache")
    assert story.recalled().calls == [(0, first), (1, second), (0, third)]
    story.out(0, utility_output=wire.UtilityOutput(77))
    assert story.recalled().calls == [(1, second), (0, third)]
    story.out(1, utility_output=wire.UtilityOutput(77, "an engine has died"))
    assert story.recalled().calls == [(0, third)]


def test_what_cannot_be_read_counts() -> None:
    story = Story()
    story.input(0, wire.ADD, b"\xc1")
    story.input(0, b"\x7f", b"whatever", b"more")
    story.input(3, wire.ABORT, b"\xc1")
    story.input(3, wire.UTILITY, wire.encode([]))
    assert story.recalled() == Recalled(received={0: 2, 3: 2})


def test_a_refused_request_that_could_not_be_read_has_ended() -> None:
    story = Story()
    story.input(0, wire.ADD, wire.encode(["a", "no token ids"]))
    assert story.ids() == [(0, "a")]
    story.out(0, wire.Output("a", [], finish_reason=wire.ERROR))
    assert story.ids() == []


def test_what_is_live_goes_on_from_the_head_of_a_new_file() -> None:
    story = Story()
    for api, request_id in ((1, "a"), (0, "b"), (0, "c")):
        story.add(api, request_id, b"frame")
    story.call(1, 5, "sleep")
    story.out(0, wire.Output("b", [7]), wire.Output("c", [1]))
    head, rest = story.recalled(), len(story.entries)
    story.out(0, wire.Output("b", [8]), wire.Output("c", [2], finish_reason=wire.STOP))
    story.out(1, utility_output=wire.UtilityOutput(5))
    story.add(0, "d")
    live = Entry(LIVE, 0, 0, [wire.encode(head)])
    assert recall([live, *story.entries[rest:]]) == story.recalled()
    assert story.ids() == [(1, "a"), (0, "b"), (0, "d")]


def test_what_was_recalled_does_not_change_with_what_comes_later() -> None:
    story = Story()
    story.add(0, "a")
    story.out(0, wire.Output("a", [7]))
    recalling = Recall()
    for entry in story.entries:
        recalling.take(entry)
    before = recalling.recalled()
    story.out(0, wire.Output("a", [8]))
    recalling.take(story.entries[-1])
    assert [one.emitted for one in before.requests] == [[7]]
    assert recalling.recalled() == story.recalled() != before


def test_the_structures_that_are_read_back_begin_like_those_that_are_sent() -> None:
    for short, whole in ((SentOutput, wire.Output), (SentOutputs, wire.Outputs)):
        fields = short.__struct_fields__
        assert fields == whole.__struct_fields__[: len(fields)]


# -- legs ---------------------------------------------------------------------------------------


def test_a_leg_is_open_from_its_beginning_until_its_handle_is_read() -> None:
    story = Story()
    story.legs(["begun", "p:1", "p0"])
    story.legs(["begun", "p:2", "p1"])
    assert story.recalled().legs == [
        OpenLeg("p:1", "p0", "p0", "p:1"),
        OpenLeg("p:2", "p1", "p1", "p:2"),
    ]
    story.legs(["handed", "p:1", "d:3", "d0"])
    assert story.recalled().legs[0] == OpenLeg("p:1", "p0", "d0", "d:3")
    story.legs(["over", "p:1", "p:7"], ["begun", "p:4", "p0"])
    story.legs(["handed", "p:1", "d:5", "d1"])  # what is over stays so
    assert [leg.leg for leg in story.recalled().legs] == ["p:2", "p:4"]


def test_an_engine_that_is_gone_takes_its_legs_and_its_sample_with_it() -> None:
    story = Story()
    for name in ("p0", "p1"):
        story.legs(["begun", f"p:{name}", name], ["sample", name, name.encode()])
    story.legs(["sample", "p1", b"later"], ["gone", "p0"], ["gone", "d0"])
    found = story.recalled()
    assert (found.legs, found.samples) == (
        [OpenLeg("p:p1", "p1", "p1", "p:p1")],
        {"p1": b"later"},
    )


def test_open_legs_outlive_a_new_file_and_do_not_change_with_what_comes_later() -> None:
    story = Story()
    story.legs(["begun", "p:1", "p0"], ["sample", "p0", b"\x80"])
    recalling = Recall()
    recalling.take(story.entries[0])
    head = recalling.recalled()
    live = Entry(LIVE, 0, 0, [wire.encode(head)])
    story.legs(["handed", "p:1", "d:2", "d0"])
    recalling.take(story.entries[-1])
    assert head.legs == [OpenLeg("p:1", "p0", "p0", "p:1")]
    assert recall([live, story.entries[-1]]) == story.recalled() == recalling.recalled()


def test_notes_that_cannot_be_read_say_nothing() -> None:
    story = Story()
    story.legs(["begun", "p:1", "p0"])
    before = story.recalled()
    story.legs(["begun", "p:2"])
    story.legs(["unknown"])
    story.legs([])
    story.entries.append(Entry(LEGS, 0, 0, [b"\xc1"]))
    assert story.recalled() == before
