"""An API server's end of the channel: numbers, what is kept, what is passed on, how long it waits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import zmq

from fakes.switches import load
from vdisagg.control import channel as ours
from vdisagg.control import wire

CHANNEL = load("vdisagg_channel")
ADD = [wire.IDENTITY, wire.ADD, b"payload", b"tensor"]


class Line:
    """A controller that is there or not, and time that passes by sleeping only."""

    def __init__(self, **limits: int) -> None:
        self.channel = CHANNEL.Channel(**limits)
        self.there = True
        self.now = 0.0
        self.got: list[list[bytes]] = []
        self.comes: Callable[[], object] = lambda: None

    def post(self, frames: Sequence[bytes]) -> bool:
        if self.there:
            self.got.append(list(frames))
        return self.there

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.comes()

    def send(self, frames: Sequence[Any] = ADD) -> bool:
        sent: bool = self.channel.send(frames, self.post, clock=lambda: self.now, sleep=self.sleep)
        return sent

    def take(self, *frames: Any) -> tuple[Any, list[list[bytes]]]:
        taken: tuple[Any, list[list[bytes]]] = self.channel.take(frames, now=self.now)
        return taken

    def outputs(self, number: int) -> Any:
        return self.take(b"outputs", b"tensor", ours.number_frame(number))

    def attach(self, received: int) -> tuple[ours.Answer, list[int]]:
        """The answer, and the numbers that are sent again."""
        said = ours.control(ours.Control(attach=ours.Attach(received)))
        given, (answer, *again) = self.take(*said)
        assert given is None
        return answered(answer), [number for frames in again for number in [number_of(frames)]]


def answered(message: list[bytes]) -> ours.Answer:
    identity, kind, payload = message
    assert (identity, kind) == (wire.IDENTITY, ours.ANSWER)
    return ours.decode_answer(payload)


def number_of(frames: list[bytes]) -> int:
    number = ours.take_number(list(frames))
    assert number is not None
    return number


def test_both_ends_mean_the_same_marks() -> None:
    for name in ("NUMBERED", "CONTROL", "ANSWER", "EMPTY_OUTPUTS"):
        assert getattr(CHANNEL, name) == getattr(ours, name)
    assert (CHANNEL.IDENTITY, CHANNEL.ABORT) == (wire.IDENTITY, wire.ABORT)
    assert wire.decode_outputs(CHANNEL.EMPTY_OUTPUTS) == wire.Outputs()


def test_a_message_gets_its_number_behind_the_tensors() -> None:
    line = Line()
    assert line.send()
    assert line.send()
    assert line.got == [[*ADD, ours.number_frame(1)], [*ADD, ours.number_frame(2)]]


def test_what_a_new_controller_has_not_seen_is_sent_again_with_its_tensors() -> None:
    line = Line()
    for _ in range(4):
        line.send()
    assert line.attach(2) == (ours.Answer(last=0, sent=4, first=3, resend=True), [3, 4])
    assert line.attach(4) == (ours.Answer(last=0, sent=4, first=5, resend=True), [])
    _, (_, message) = line.take(*ours.control(ours.Control(attach=ours.Attach(3))))
    assert message == line.got[3]


def test_tensors_are_kept_as_they_were_sent() -> None:
    line, tensor = Line(), bytearray(b"before")
    line.send([wire.IDENTITY, wire.ADD, b"payload", memoryview(tensor)])
    tensor[:] = b"after!"
    _, (_, message) = line.take(*ours.control(ours.Control(attach=ours.Attach(0))))
    assert message[3] == b"before"


@pytest.mark.parametrize("limits", [{"most": 3}, {"most_bytes": 3 * len(b"".join(ADD)) + 60}])
def test_the_oldest_messages_go_first_and_the_answer_says_so(limits: dict[str, int]) -> None:
    line = Line(**limits)
    for _ in range(10):
        line.send()
    assert line.attach(2) == (ours.Answer(last=0, sent=10, first=8, resend=True), [8, 9, 10])


def test_outputs_are_passed_on_once_and_without_their_number() -> None:
    line = Line()
    assert line.outputs(1) == ((b"outputs", b"tensor"), [])
    assert line.outputs(1) == (None, [])
    assert line.outputs(2) == ((b"outputs", b"tensor"), [])


def test_after_a_gap_nothing_is_passed_on_and_what_is_missing_is_asked_for() -> None:
    line = Line()
    line.outputs(1)
    given, (ask,) = line.outputs(4)
    assert given is None
    assert answered(ask) == ours.Answer(last=1, sent=0, resend=True)
    assert line.outputs(5) == (None, []), "asked for already"
    for number in (2, 3, 4, 5):
        assert line.outputs(number)[0] is not None
    assert line.outputs(5) == (None, [])
    line.now += CHANNEL.ASK_S
    assert answered(line.outputs(9)[1][0]).resend


def test_a_lost_last_message_is_missed_when_the_controller_says_its_number() -> None:
    line = Line()
    health = ours.Health(ok=True)
    line.outputs(1)
    _, (answer,) = line.take(*ours.control(ours.Control(health=health, sent=1)))
    assert answered(answer) == ours.Answer(last=1, sent=0)
    _, (ask,) = line.take(*ours.control(ours.Control(health=health, sent=2)))
    assert answered(ask) == ours.Answer(last=1, sent=0, resend=True)


def test_a_hole_that_nobody_can_fill_ends_the_api_server_instead_of_spoiling_answers() -> None:
    line = Line()
    line.outputs(1)
    assert line.take(*ours.control(ours.Control(first=2)))[0] is None
    assert line.take(*ours.control(ours.Control(first=4)))[0] == [wire.ENGINE_CORE_DEAD]


def test_messages_without_a_mark_pass_as_they_are() -> None:
    line = Line()
    for frames in ((b"outputs",), (b"outputs", b"tensor"), (b"ENGINE_CORE_DEAD",), (b"", b"")):
        assert line.take(*frames) == (frames, [])


def test_frames_of_zeromq_are_taken_like_bytes() -> None:
    line = Line()
    outputs = zmq.Frame(b"outputs")
    assert line.take(outputs, zmq.Frame(ours.number_frame(1))) == ((outputs,), [])
    said = ours.control(ours.Control(health=ours.Health(ok=False, reason="no link")))
    assert line.take(*map(zmq.Frame, said))[0] is None
    assert line.channel.unhealthy(now=0.0) == "no link"


def test_a_message_waits_for_the_next_controller() -> None:
    line = Line()
    line.there = False

    def comes() -> None:
        line.there = line.now >= 1.0

    line.comes = comes
    assert line.send()
    assert line.now == pytest.approx(1.0, abs=0.01)
    assert line.got == [[*ADD, ours.number_frame(1)]]


def test_without_a_controller_it_fails_after_the_limit_and_then_at_once() -> None:
    line = Line()
    line.there = False
    assert not line.send()
    assert line.now == pytest.approx(CHANNEL.WAIT_S, abs=0.01)
    waited = line.now
    assert not line.send()
    assert line.now == waited
    line.there = True
    assert line.send()
    line.there = False
    assert not line.send()
    assert line.now > waited, "it waits again, since one has been there"
    assert line.attach(0)[1] == [1], "what failed was never sent"


def test_a_controller_that_attaches_is_waited_for_again_and_health_is_bad_until_then() -> None:
    line = Line()
    line.there = False
    assert not line.send()
    healthy = ours.control(ours.Control(health=ours.Health(ok=True)))
    line.take(*healthy)
    assert line.channel.unhealthy(now=line.now) == "no controller takes requests yet"
    line.attach(0)
    assert line.channel.unhealthy(now=line.now) is None
    tried = line.now
    line.comes = lambda: setattr(line, "there", line.now >= tried + 1.0)
    assert line.send(), "its other socket is connected a moment later"


def test_an_abort_never_waits_and_goes_to_whoever_comes() -> None:
    line = Line()
    line.send()
    line.there = False
    assert line.send([wire.IDENTITY, wire.ABORT, wire.encode(["r"])])
    assert line.now == 0.0
    assert line.attach(1) == (ours.Answer(last=0, sent=2, first=2, resend=True), [2])


def test_health_is_the_controllers_last_word_until_it_falls_silent() -> None:
    line = Line()
    assert line.channel.unhealthy(now=1e6) is None, "who has never spoken is not missed"
    line.take(*ours.control(ours.Control(health=ours.Health(ok=True))))
    assert line.channel.unhealthy(now=CHANNEL.SILENCE_S) is None
    assert "said nothing" in line.channel.unhealthy(now=CHANNEL.SILENCE_S + 1)
    line.take(*ours.control(ours.Control(health=ours.Health(ok=False, reason="no link"))))
    assert line.channel.unhealthy(now=0.0) == "no link"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"3", b'{"attach": {}}', b'{"health": 1}', b'{"sent": "x"}', b"\xff"]
)
def test_a_control_message_that_makes_no_sense_changes_nothing(text: bytes) -> None:
    line = Line()
    assert line.take(ours.EMPTY_OUTPUTS, ours.CONTROL + text) == (None, [])
    assert line.channel.unhealthy(now=1e6) is None


def test_whatever_is_lost_or_doubled_on_the_way_vllm_gets_each_message_once_in_order() -> None:
    rng = random.Random(5)
    line = Line()
    written = list(range(1, 200))
    passed: list[int] = []
    position = 0
    while len(passed) < len(written):
        if position == len(written) or rng.random() < 0.1:  # a new controller, or a reconnection
            position = line.attach(0)[0].last
        number = written[position]
        position += 1
        if rng.random() < 0.8:
            line.now += rng.random() * 0.2
            given, answers = line.take(b"%d" % number, ours.number_frame(number))
            passed += [] if given is None else [int(given[0])]
            position = answered(answers[0]).last if answers else position
    assert passed == written


def test_the_words_between_the_ends_are_json() -> None:
    _, text = ours.control(ours.Control(attach=ours.Attach(3), sent=2))
    assert json.loads(text.removeprefix(ours.CONTROL)) == {"attach": {"received": 3}, "sent": 2}
