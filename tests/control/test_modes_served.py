"""One engine for a whole request, and its phases, through the whole control plane with fakes around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from control.test_takeover import begin, end, hold
from fakes.cluster import Cluster
from fakes.engine import continuation
from fakes.front import PATIENCE_S
from vdisagg.bench.insight import Insight
from vdisagg.cluster.modes import COLOCATED, KEY
from vdisagg.control import wire

Clusters = Callable[..., Cluster]
SAID: dict[str, Any] = {"extra_args": {KEY: COLOCATED}}
PROMPT = list(range(40))


def prompts(count: int) -> list[list[int]]:
    return [[*PROMPT, number] for number in range(count)]


def whole(cluster: Cluster, name: str) -> list[wire.AddRequest]:
    """What an engine has been asked to compute from the prompt to the end, for users."""
    added = cluster.engines[name].added
    return [
        asked
        for asked in added
        if asked.request_id.startswith("w:") and ":-1:" not in asked.request_id
    ]


def test_they_are_answered_by_engines_of_both_roles_and_leave_no_block(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    hold(cluster, 5)
    requests = [cluster.front.add(prompt, max_tokens=9, **SAID) for prompt in prompts(8)]
    cluster.until(lambda: sum(len(engine.running) for engine in cluster.engines.values()) == 8)
    hold(cluster, math.inf)
    answers = [cluster.front.finish(request) for request in requests]
    assert answers == [continuation(prompt, 9) for prompt in prompts(8)]
    assert (len(whole(cluster, "p0")), len(whole(cluster, "d0"))) == (4, 4)
    for asked in (*whole(cluster, "p0"), *whole(cluster, "d0")):
        assert asked.sampling_params == {"temperature": 0.0, "max_tokens": 9, "extra_args": None}
    cluster.settle()
    assert cluster.store.held == {}
    assert {engine.blocks_used for engine in cluster.engines.values()} == {0}
    totals = cluster.status().totals
    assert (totals.colocated, totals.finished, totals.alone) == (8, 8, 0)


def test_both_modes_at_once_are_right(cluster_of: Clusters) -> None:
    cluster = cluster_of(2, 2).up()
    modes: list[dict[str, Any]] = [{}, SAID]
    requests = [
        cluster.front.add(prompt, max_tokens=12, **modes[number % 2])
        for number, prompt in enumerate(prompts(40))
    ]
    answers = [cluster.front.finish(request) for request in requests]
    assert answers == [continuation(prompt, 12) for prompt in prompts(40)]
    cluster.settle()
    assert (cluster.store.held, cluster.store.misread) == ({}, [])


def test_a_mode_that_is_none_is_an_error_and_the_events_name_it(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    request = cluster.front.add(PROMPT, extra_args={KEY: "both"})
    cluster.front.finish(request)
    assert cluster.front.finish_reason(request) == wire.ERROR
    assert any("its vdisagg_mode is 'both'; known: pd, colocated" in e for e in cluster.events())


@pytest.mark.parametrize("name", ["p0", "d0"])
def test_the_death_of_its_engine_is_not_seen_by_the_client(cluster_of: Clusters, name: str) -> None:
    cluster = cluster_of().up()
    hold(cluster, 9)
    requests = [cluster.front.add(prompt, max_tokens=60, **SAID) for prompt in prompts(4)]
    cluster.until(lambda: all(len(cluster.front.tokens(request)) > 3 for request in requests))
    cluster.engines[name].kill()
    hold(cluster, math.inf)
    for request, prompt in zip(requests, prompts(4), strict=True):
        assert cluster.front.finish(request) == continuation(prompt, 60)
    assert cluster.status().totals.continued == 2
    other = "d0" if name == "p0" else "p0"
    assert len(whole(cluster, other)) == 4


def test_a_controller_after_this_one_goes_on_in_the_same_mode(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    hold(cluster, 9)
    requests = [cluster.front.add(prompt, max_tokens=60, **SAID) for prompt in prompts(4)]
    cluster.until(lambda: all(len(cluster.front.tokens(request)) > 3 for request in requests))
    end(cluster)
    begin(cluster)
    hold(cluster, math.inf)
    for request, prompt in zip(requests, prompts(4), strict=True):
        assert cluster.front.finish(request) == continuation(prompt, 60)
    assert len(whole(cluster, "p0")) + len(whole(cluster, "d0")) == 8
    cluster.settle()
    cluster.until(lambda: {engine.blocks_used for engine in cluster.engines.values()} == {0})
    assert cluster.status().totals.colocated == 4


def test_a_bench_hears_the_phases_of_its_requests_and_no_others(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.front.generate(PROMPT, request_id="cmpl-before-0-12345678")
    insight = Insight(cluster.directory, timeout_s=PATIENCE_S)
    insight.begin()
    cluster.front.generate(PROMPT, request_id="cmpl-pd-0-12345678")
    cluster.front.generate(PROMPT, request_id="chatcmpl-one-12345678", **SAID)
    phases = insight.phases()
    assert list(phases) == ["pd", "one"]
    pd, one = phases["pd"], phases["one"]
    assert (pd.prefill, pd.decode) == ("p0", "d0")
    assert pd.prefill_s is not None
    assert pd.transfer_s is not None
    assert min(pd.queue_s, pd.prefill_s, pd.transfer_s, pd.decode_s) >= 0
    assert (one.prefill, one.prefill_s, one.transfer_s) == ("", None, None)
    assert one.decode in ("p0", "d0")
    assert insight.phases() == {}, "each is told once"
    assert insight.links() == [("p0", "d0")]
    assert insight.notes == []


def test_of_what_a_controller_has_taken_over_the_new_one_tells(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    insight = Insight(cluster.directory, timeout_s=PATIENCE_S)
    insight.begin()
    cluster.front.generate(PROMPT, request_id="cmpl-a-0-12345678")
    end(cluster)
    begin(cluster)
    cluster.until(lambda: all(link.state == "warm" for link in cluster.status().links))
    cluster.front.generate(PROMPT, request_id="cmpl-b-0-12345678")
    assert list(insight.phases()) == ["b"]
    assert len(insight.notes) == 1
