"""Probes have the right size: KV moves, decode answers, and the longest request is kept to."""

from __future__ import annotations

import pytest

from vdisagg.control import wire
from vdisagg.control.dummies import alone_request, probe_request, probe_size


@pytest.mark.parametrize("canary_tokens", [2, 8, 1024])
def test_a_probe_is_longer_than_a_block_and_decodes_what_is_asked_for(canary_tokens: int) -> None:
    size = probe_size(block_size=128, max_model_len=4096, canary_tokens=canary_tokens)
    assert size == (133, canary_tokens)


def test_a_probe_asks_for_two_tokens_at_least_since_prefill_alone_would_answer_one() -> None:
    assert probe_size(block_size=16, max_model_len=4096, canary_tokens=1) == (21, 2)


@pytest.mark.parametrize("max_model_len", [3, 16, 20, 23, 30, 100, 1045, 1046])
@pytest.mark.parametrize("canary_tokens", [1, 8, 1024])
def test_a_probe_never_exceeds_the_longest_request(max_model_len: int, canary_tokens: int) -> None:
    length, tokens = probe_size(
        block_size=16, max_model_len=max_model_len, canary_tokens=canary_tokens
    )
    assert length >= 1
    assert tokens >= 2
    assert length + tokens <= max_model_len


def test_a_probe_comes_after_everybody_else() -> None:
    probe = probe_request("p0-d0", [7, 8], max_tokens=8, salt="a", now=1.0)
    assert probe.priority == 2**31 - 1
    assert (probe.cache_salt, probe.sampling_params) == (
        "a",
        {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True},
    )


def test_what_decode_computes_alone_is_the_same_with_the_likeliest_tokens_shown() -> None:
    probe = probe_request("p0-d0", [7, 8], max_tokens=8, salt="a", now=1.0)
    alone = alone_request("p0-d0", [7, 8], max_tokens=8, salt="b", now=1.0)
    assert alone.sampling_params == {**(probe.sampling_params or {}), "logprobs": 2}
    assert (alone.prompt_token_ids, alone.cache_salt) == (wire.raw([7, 8]), "b")
