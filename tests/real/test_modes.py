"""Requests that one engine computes whole, beside those over both legs, and where a request's time went."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from real.ask import post
from real.conftest import B, RealCluster
from real.cores import core, stopped
from real.reference import Question, Reference, ask, question
from vdisagg.bench.insight import Insight, phases_of
from vdisagg.cluster import admin
from vdisagg.cluster.modes import COLOCATED, KEY, PD

pytestmark = pytest.mark.real

LENGTHS = [1, B - 1, B + 1, 2 * B, 5 * B + 3]
ANSWER = 12


def said(mode: str) -> dict[str, Any]:
    """What a client adds to a request's body."""
    return {"vllm_xargs": {KEY: mode}}


def timings(cluster: RealCluster, after: int = 0) -> admin.Timings:
    return admin.ask(cluster.state, admin.Timings, "timings", after=after)


def beaten(cluster: RealCluster) -> admin.ControllerStatus:
    """Its status after a probe: the next one, which would be load too, is not due for some seconds."""
    known = cluster.status().links[0].transfers
    admin.ask(cluster.state, admin.Done, "probe")
    return cluster.until(lambda s: s.links[0].transfers > known, "beat")


def in_mode(cluster: RealCluster, asked: Question, mode: str) -> tuple[list[int], str]:
    """An answer's tokens, and who computed it: "p0→d0", or one engine's name."""
    last = timings(cluster).last
    status, tokens = ask(cluster.url, cluster.model, asked, **said(mode))
    assert status == 200
    (timing,) = timings(cluster, after=last).timings
    return tokens, f"{timing.prefill}→{timing.decode}" if timing.prefill else timing.decode


@pytest.mark.parametrize("length", LENGTHS)
def test_either_engine_alone_answers_as_both_together_do(
    tiny: RealCluster, plain_tiny: str, length: int
) -> None:
    reference, asked = Reference(plain_tiny), question(length, ANSWER, "modes")
    given = [in_mode(tiny, asked, mode) for mode in (PD, COLOCATED, COLOCATED)]
    assert [reference.wrong(asked, tokens) for tokens, _ in given] == ["", "", ""]
    by = [who for _, who in given]
    assert (by[0], sorted(by[1:])) == ("p0→d0", ["d0", "p0"])


def test_eight_at_once_are_shared_and_leave_no_block(tiny: RealCluster, plain_tiny: str) -> None:
    reference = Reference(plain_tiny)
    tiny.idle()
    counted, last = beaten(tiny).totals.colocated, timings(tiny).last
    questions = [question(200, 24, f"at once {number}") for number in range(8)]
    with ThreadPoolExecutor(len(questions)) as pool:
        with stopped(core(tiny, "p0")), stopped(core(tiny, "d0")):
            asked = [
                pool.submit(ask, tiny.url, tiny.model, one, **said(COLOCATED)) for one in questions
            ]
            tiny.until(lambda s: s.totals.in_flight == 8, "eight requests at once")
        answers = [one.result() for one in asked]
    assert [status for status, _ in answers] == [200] * 8
    pairs = zip(questions, answers, strict=True)
    assert [what for asked, (_, tokens) in pairs if (what := reference.wrong(asked, tokens))] == []
    by = sorted(one.decode for one in timings(tiny, after=last).timings)
    assert by == ["d0"] * 4 + ["p0"] * 4
    assert tiny.status().totals.colocated == counted + 8
    tiny.idle()


def test_a_mode_that_is_none_is_an_error_that_events_names(tiny: RealCluster) -> None:
    body = question(5, 2, 0).body(tiny.model, **said("both"))
    assert post(tiny.url, "/v1/completions", body)[0] == 500
    events = admin.ask(tiny.state, admin.Events, "events").events
    assert any("its vdisagg_mode is 'both'; known: pd, colocated" in e.what for e in events)


def sent_as(cluster: RealCluster, path: str, body: dict[str, Any], request_id: str) -> float:
    """Ask under an id of ours; how long the answer took, in seconds."""
    connection = http.client.HTTPConnection(urlsplit(cluster.url).netloc, timeout=60)
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    begun = time.monotonic()
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 200
    return time.monotonic() - begun


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_the_phases_of_a_request_are_told_under_its_clients_id_and_add_up(
    tiny: RealCluster, kind: str
) -> None:
    insight = Insight(tiny.state, timeout_s=30)
    insight.begin()
    last = timings(tiny).last
    if kind == "chat":
        message = {"role": "user", "content": "hello " * 50}
        body = {"model": tiny.model, "messages": [message], "max_tokens": ANSWER, "temperature": 0}
        took = sent_as(tiny, "/v1/chat/completions", body, "bench-7-33")
    else:
        body = question(200, ANSWER, "phases").body(tiny.model)
        took = sent_as(tiny, "/v1/completions", body, "bench-7-33")
    phases = insight.phases()
    assert list(phases) == ["bench-7-33"]
    told = phases["bench-7-33"]
    (timing,) = timings(tiny, after=last).timings
    assert phases_of(timing) == told
    assert (told.prefill, told.decode) == ("p0", "d0")
    assert timing.engine_queue_s is not None, "prefill says how long it was queued"
    assert told.prefill_s is not None
    assert told.transfer_s is not None
    parts = [told.queue_s, told.prefill_s, told.transfer_s, told.decode_s]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(timing.end_s)
    assert sum(parts) < took
    print(f"{took:.3f} s, of which {parts}")
    assert insight.notes == []
    assert set(insight.versions()) == {"vdisagg", "p0", "d0"}
    assert insight.links() == [("p0", "d0")]
