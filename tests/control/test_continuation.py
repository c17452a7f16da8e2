"""Which answers can be computed on by another engine, and what it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.messages import request
from vdisagg.control import wire
from vdisagg.control.continuation import HINDRANCES, hindrance, rest

PLAIN: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8}


@pytest.mark.parametrize(
    "options",
    [
        {"structured_outputs": {"json": "{}"}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.1},
        {"bad_words": ["x"]},
        {"repetition_detection": {"max_pattern_size": 3}},
        {"thinking_token_budget": 5},
        {"watermarking": True},
        {"extra_args": {"mine": 1}},
        {"prompt_logprobs": 0},
        {"prompt_logprob_token_ids": [1]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_depends_on_whose_the_tokens_are_hinders(options: dict[str, Any]) -> None:
    assert hindrance(request("r"), PLAIN | options)


def test_every_hindrance_among_the_options_is_tried_above() -> None:
    assert len(HINDRANCES) == 11


def test_a_seed_hinders_where_something_is_drawn() -> None:
    assert hindrance(request("r"), {"seed": 3, "temperature": 0.7})
    assert hindrance(request("r"), {"seed": 3}), "the default temperature is 1"
    assert not hindrance(request("r"), {"seed": 3, "temperature": 0.0})


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        {"extra_args": None, "bad_words": [], "structured_outputs": None},
        {"temperature": 0.9, "top_p": 0.5, "min_p": 0.1},
        {"logprobs": 3},
        {"min_tokens": 4, "stop_token_ids": [5]},
        {"logit_bias": {5: 1.0}, "allowed_token_ids": [5, 6]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_depends_on_the_tokens_alone_does_not(options: dict[str, Any]) -> None:
    assert hindrance(request("r"), PLAIN | options) == ""


def test_pooling_embeddings_and_images_hinder() -> None:
    assert "pooling" in hindrance(request("r", None), None)
    assert "embeddings" in hindrance(request("r", prompt_token_ids=wire.NIL), PLAIN)
    assert "multi-modal" in hindrance(request("r", mm_features=wire.raw([{}])), PLAIN)
    assert hindrance(request("r", mm_features=wire.raw([])), PLAIN) == ""


def test_the_rest_is_the_prompt_and_the_tokens_with_so_many_fewer_to_come() -> None:
    left, sampling = rest(request("r"), PLAIN, [7, 8])
    assert wire.decode_value(left.prompt_token_ids) == [11, 12, 13, 7, 8]
    assert sampling == {"temperature": 0.0, "max_tokens": 6}


@pytest.mark.parametrize(("least", "left"), [(5, 3), (2, 0), (1, 0)])
def test_the_least_length_counts_the_tokens_that_are_there(least: int, left: int) -> None:
    _, sampling = rest(request("r"), PLAIN | {"min_tokens": least}, [7, 8])
    assert sampling["min_tokens"] == left


def test_a_request_that_says_nothing_of_max_tokens_had_16() -> None:
    assert rest(request("r"), {}, [7])[1] == {"max_tokens": 15}
