"""Utility calls: to every engine, and one answer back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vdisagg.control import wire
from vdisagg.control.actions import Send
from vdisagg.control.utility import Answer, Calls

NAMES = ("p0", "d0")


def payload(call_id: int, method: str, *arguments: object) -> bytes:
    """A UTILITY message as a front end sends it."""
    return wire.encode((0, call_id, method, arguments))


def called(method: str = "sleep", api: int = 1, call_id: int = 77) -> Calls:
    """One call under way on p0 and d0, as number 1."""
    calls = Calls()
    calls.call(api, payload(call_id, method), NAMES)
    return calls


def result(value: Any, kind: Any = None, number: int = 1) -> wire.UtilityOutput:
    """An engine's answer."""
    return wire.UtilityOutput(number, None, wire.raw((kind, value)))


def failure(text: str, number: int = 1) -> wire.UtilityOutput:
    """An engine's refusal."""
    return wire.UtilityOutput(number, text)


def test_a_call_goes_to_every_engine_under_a_number_of_our_own() -> None:
    sends, answers = Calls().call(1, payload(77, "sleep", 1, "abort"), NAMES)
    message = wire.encode((0, 1, "sleep", (1, "abort")))
    assert sends == [Send("d0", wire.UTILITY, message), Send("p0", wire.UTILITY, message)]
    assert answers == []


def test_two_api_servers_may_use_the_same_call_id() -> None:
    calls = Calls()
    calls.call(0, payload(77, "sleep"), ["p0"])
    calls.call(1, payload(77, "sleep"), ["p0"])
    assert [a.api for a in calls.answered("p0", result(None, number=2))] == [1]
    assert [a.api for a in calls.answered("p0", result(None, number=1))] == [0]


def test_the_answer_waits_for_the_last_engine_and_goes_to_who_asked() -> None:
    calls = called()
    assert calls.answered("p0", result(None)) == []
    answer = Answer(1, wire.UtilityOutput(77, None, wire.raw((None, None))))
    assert calls.answered("d0", result(None)) == [answer]


def test_equal_results_are_passed_on_byte_for_byte() -> None:
    odd = b"\x92\xd9\x01x\xcd\x00\x05"  # ["x", 5], written at greater length than need be
    calls = called("anything")
    calls.answered("p0", wire.UtilityOutput(1, None, msgspec.Raw(odd)))
    (answer,) = calls.answered("d0", wire.UtilityOutput(1, None, msgspec.Raw(odd)))
    assert bytes(answer.output.result) == odd


def test_failures_name_their_instance_and_one_fails_the_call() -> None:
    calls = called()
    calls.answered("p0", result(None))
    (answer,) = calls.answered("d0", failure("no such adapter"))
    assert answer.output == wire.UtilityOutput(77, "d0: no such adapter")


def test_all_failures_are_told() -> None:
    calls = called()
    calls.answered("p0", failure("first"))
    (answer,) = calls.answered("d0", failure("second"))
    assert answer.output.failure_message == "p0: first; d0: second"


@pytest.mark.parametrize(
    ("one", "other", "both"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_booleans_hold_when_they_hold_everywhere(one: bool, other: bool, both: bool) -> None:
    calls = called("add_lora")
    calls.answered("p0", result(one))
    (answer,) = calls.answered("d0", result(other))
    assert wire.decode_value(answer.output.result) == [None, both]


@pytest.mark.parametrize("method", ["get_supported_tasks", "list_loras"])
def test_the_cluster_has_what_all_engines_have(method: str) -> None:
    calls = called(method)
    calls.answered("p0", result(["generate", "embed", "score"], kind="k"))
    (answer,) = calls.answered("d0", result(["score", "generate"]))
    assert wire.decode_value(answer.output.result) == ["k", ["generate", "score"]]


def test_results_that_cannot_be_combined_are_the_first_ones() -> None:
    calls = called("collective_rpc")
    calls.answered("p0", result([1]))
    (answer,) = calls.answered("d0", result([2]))
    assert wire.decode_value(answer.output.result) == [None, [1]]


def test_late_foreign_and_repeated_answers_are_ignored() -> None:
    calls = called()
    assert calls.answered("p0", result(None, number=9)) == []
    assert calls.answered("d7", result(None)) == []
    assert calls.answered("p0", result(None)) == []
    assert calls.answered("p0", failure("again")) == []
    (answer,) = calls.answered("d0", result(None))
    assert answer.output.failure_message is None
    assert calls.answered("d0", result(None)) == []


def test_without_a_ready_engine_a_call_fails_at_once() -> None:
    sends, answers = Calls().call(1, payload(77, "sleep"), [])
    assert sends == []
    assert answers == [Answer(1, wire.UtilityOutput(77, "no engine is ready"))]


def test_an_engine_that_dies_under_a_call_fails_it_by_name() -> None:
    calls = called()
    assert calls.lost("d7") == []
    calls.answered("p0", result(None))
    (answer,) = calls.lost("d0")
    assert answer.output == wire.UtilityOutput(77, "d0: the engine is gone")
    assert calls.lost("d0") == []


def test_calls_of_a_front_end_that_is_gone_are_never_answered() -> None:
    calls = called()
    calls.forget()
    assert calls.answered("p0", result(None)) == []
    assert calls.answered("d0", result(None)) == []
