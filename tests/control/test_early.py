"""Prefill's token goes out ahead of decode's where both are the same, and never twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fakes.cluster import Cluster
from fakes.engine import continuation
from fakes.messages import request
from vdisagg.control import early, wire

Clusters = Callable[..., Cluster]
PROMPT = list(range(40))
PLAIN: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8}


def test_the_first_token_is_there_before_decode_has_answered(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["d0"].behaviour.frozen = True
    asked = cluster.front.add(PROMPT, max_tokens=6)
    cluster.until(lambda: cluster.front.tokens(asked) == continuation(PROMPT, 1))
    cluster.engines["d0"].behaviour.frozen = False
    assert cluster.front.finish(asked) == continuation(PROMPT, 6)
    first, *others = cluster.front.received[asked]
    assert wire.decode_value(first.prefill_stats) == {"num_cached_tokens": 0}
    assert {bytes(output.prefill_stats) for output in others} == {b"\xc0"}
    assert all(output.new_token_ids for output in others)
    assert cluster.status().totals.output_tokens == 6


@pytest.mark.parametrize("max_tokens", [2, 3])
def test_the_last_token_still_ends_the_answer(cluster_of: Clusters, max_tokens: int) -> None:
    cluster = cluster_of().up()
    asked = cluster.front.add(PROMPT, max_tokens=max_tokens)
    assert cluster.front.finish(asked) == continuation(PROMPT, max_tokens)
    assert cluster.front.finish_reason(asked) == wire.LENGTH


def test_where_decode_differs_the_rest_is_computed_from_what_the_client_has(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    decode = cluster.engines["d0"].behaviour
    decode.corrupt = True  # it reads something else than prefill wrote
    # Proofs of the link would be counted as well, since they fail.
    decode.stall = lambda request: ":-1:" in request.request_id
    mismatches = cluster.status().links[0].mismatches
    asked = cluster.front.add(PROMPT, max_tokens=6)
    assert cluster.front.finish(asked) == continuation(PROMPT, 6)
    assert cluster.front.finish_reason(asked) == wire.LENGTH
    assert cluster.status().links[0].mismatches == mismatches + 1
    assert any("computed anew" in line for line in cluster.events())
    decode.stall = lambda request: False
    cluster.settle()
    cluster.until(lambda: {i.in_flight for i in cluster.status().instances} == {0})
    assert cluster.status().totals.output_tokens == 6


def test_a_token_that_ends_the_answer_is_left_to_decode(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["d0"].behaviour.frozen = True
    stop = continuation(PROMPT, 1)[0]
    asked = cluster.front.add(PROMPT, _all_stop_token_ids=[stop])
    cluster.until(lambda: cluster.engines["d0"].running)
    cluster.front.call(1, "list_loras")  # whose answer comes after what was said before
    assert cluster.front.tokens(asked) == []


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"min_tokens": 2},
        {"logprobs": 1},
        {"structured_outputs": {"json": "{}"}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"bad_words": ["x"]},
        {"thinking_token_budget": 5},
        {"extra_args": {"mine": 1}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_depends_on_whose_the_tokens_are_is_not_eligible(options: dict[str, Any]) -> None:
    assert early.eligible(request("r"), PLAIN)
    assert not early.eligible(request("r"), PLAIN | options)


@pytest.mark.parametrize(
    "options", [{"repetition_penalty": 1.0}, {"extra_args": None}, {"logprobs": None}, {"seed": 3}]
)
def test_options_that_say_nothing_keep_a_request_eligible(options: dict[str, Any]) -> None:
    assert early.eligible(request("r"), PLAIN | options)


def test_a_prompt_without_token_ids_is_not_eligible() -> None:
    assert not early.eligible(request("r", prompt_token_ids=wire.NIL), PLAIN)


@pytest.mark.parametrize(
    ("sampling", "ends"),
    [
        ({}, False),
        ({"_eos_token_id": 7}, True),
        ({"_all_stop_token_ids": [3, 7]}, True),
        ({"stop_token_ids": [7]}, True),
        ({"stop_token_ids": None, "_eos_token_id": 8}, False),
    ],
)
def test_tokens_that_end_an_answer(sampling: dict[str, Any], ends: bool) -> None:
    assert early.ends_answer(7, sampling) is ends
