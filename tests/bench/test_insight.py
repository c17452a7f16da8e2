"""What a bench learns from the controller, and that it goes on where it learns nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from vdisagg import __version__
from vdisagg.bench.insight import Insight, phases_of
from vdisagg.bench.result import LoadPoint
from vdisagg.bench.samples import Phases
from vdisagg.cluster import admin


def timing(number: int = 1, request: str = "cmpl-r-0-00000000", **changes: object) -> admin.Timing:
    """A request that took both legs; times are sums of powers of two, so that they add up exactly."""
    fields: dict[str, object] = {
        "received": 100.0,
        "prefill": "p0",
        "decode": "d0",
        "sent_s": 0.25,
        "engine_queue_s": 0.5,
        "prefilled_s": 1.0,
        "first_s": 1.125,
        "end_s": 3.0,
    }
    return admin.Timing(number=number, request=request, **{**fields, **changes})  # type: ignore[arg-type]


BOTH_LEGS = Phases(
    prefill="p0", decode="d0", queue_s=0.75, prefill_s=0.25, transfer_s=0.125, decode_s=1.875
)


def test_the_phases_of_a_request_follow_each_other() -> None:
    assert phases_of(timing()) == BOTH_LEGS


def test_an_engine_that_does_not_tell_its_queue_has_it_in_the_next_phase() -> None:
    phases = phases_of(timing(engine_queue_s=None))
    assert (phases.queue_s, phases.prefill_s) == (0.25, 0.75)


def test_another_clocks_queue_is_no_longer_than_the_request_was_there() -> None:
    phases = phases_of(timing(engine_queue_s=0.9))
    assert (phases.queue_s, phases.prefill_s) == (1.0, 0.0)


def test_what_one_engine_computed_whole_has_neither_prefill_nor_transfer() -> None:
    whole = timing(prefill="", prefilled_s=None, first_s=1.0)
    assert phases_of(whole) == Phases("", "d0", 0.75, None, None, 2.25)


@contextlib.contextmanager
def controller(directory: Path, *answers: object) -> Iterator[list[admin.Request]]:
    """Answers so many questions, in this order; yields what has been asked."""
    asked: list[admin.Request] = []
    path, descriptor = admin.socket_address(directory)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.close(descriptor)
        listener.listen()

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection, connection.makefile("rwb") as lines:
                    asked.append(msgspec.json.decode(lines.readline(), type=admin.Request))
                    lines.write(msgspec.json.encode(answer) + b"\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        thread.join(60)
        assert not thread.is_alive(), "not all answers were asked for"


def timings(*given: admin.Timing, last: int, dropped: int = 0, started: float = 9.0) -> object:
    """A page of them."""
    return admin.Timings(list(given), last, dropped, started)


def test_phases_are_those_of_the_requests_since_begin_page_by_page(tmp_path: Path) -> None:
    insight = Insight(tmp_path, timeout_s=60.0)
    with controller(
        tmp_path,
        timings(last=7),
        timings(timing(8, "cmpl-a-0-00000000"), timing(9, "not ours"), last=10),
        timings(timing(10, "chatcmpl-b-00000000"), last=10),
    ) as asked:
        insight.begin()
        assert insight.phases() == {"a": BOTH_LEGS, "b": BOTH_LEGS}
    assert [(one.op, one.after) for one in asked[1:]] == [("timings", 7), ("timings", 9)]
    assert insight.notes == []


def test_after_a_takeover_the_new_controllers_are_read_from_the_first_on(tmp_path: Path) -> None:
    insight = Insight(tmp_path, timeout_s=60.0)
    with controller(
        tmp_path,
        timings(last=7),
        timings(last=9, started=10.0),
        timings(timing(9, "cmpl-a-0-00000000"), last=9, started=10.0),
    ) as asked:
        insight.begin()
        assert list(insight.phases()) == ["a"]
    assert [one.after for one in asked[1:]] == [7, 0]
    assert insight.notes == ["another controller took over: it has no phases from before"]


def test_what_the_controller_does_not_keep_is_noted(tmp_path: Path) -> None:
    insight = Insight(tmp_path, timeout_s=60.0)
    with controller(tmp_path, timings(last=0), timings(timing(6), last=6, dropped=5)):
        insight.begin()
        assert list(insight.phases()) == ["r"]
    assert insight.notes == ["the controller does not keep the phases of so many requests"]


def test_a_status_gives_links_loads_and_versions(tmp_path: Path) -> None:
    prefill = admin.InstanceStatus("p0", "prefill", "ready", 1.0, vllm_version="0.32.0")
    decode = admin.InstanceStatus(
        *("d0", "decode", "ready", 1.0),
        in_flight=3,
        running=2,
        waiting=1,
        kv_blocks_used=64,
        kv_blocks=257,
        vllm_version="0.32.1",
    )
    links = [
        admin.LinkStatus("p0", "d0", "warm"),
        admin.LinkStatus("p0", "d1", "stale"),
    ]
    status = admin.ControllerStatus(1, 1.0, "attached", [prefill, decode], links, admin.Totals())
    insight = Insight(tmp_path, timeout_s=60.0)
    with controller(tmp_path, status, status, status):
        assert insight.links() == [("p0", "d0")]
        assert insight.load_points(2.5) == [
            LoadPoint(2.5, "p0", "prefill", 0, 0, 0, 0.0),
            LoadPoint(2.5, "d0", "decode", 3, 2, 1, 0.25),
        ]
        assert insight.versions() == {"vdisagg": __version__, "p0": "0.32.0", "d0": "0.32.1"}
    assert insight.notes == []


@pytest.mark.parametrize("there", [True, False], ids=["nobody listens", "no such directory"])
def test_a_controller_that_does_not_answer_gives_nothing_and_is_noted_once(
    tmp_path: Path, there: bool
) -> None:
    insight = Insight(tmp_path if there else tmp_path / "nowhere")
    insight.begin()
    assert (insight.links(), insight.load_points(1.0), insight.phases()) == ([], [], {})
    assert insight.versions() == {"vdisagg": __version__}
    (note,) = insight.notes
    assert "the controller does not answer" in note


def test_a_refusal_or_half_an_answer_is_no_end_of_a_run(tmp_path: Path) -> None:
    insight = Insight(tmp_path, timeout_s=60.0)
    with controller(tmp_path, admin.Refused("unknown operation 'timings'"), {"ok": True}):
        assert insight.phases() == {}
        assert insight.links() == []
    assert len(insight.notes) == 1
