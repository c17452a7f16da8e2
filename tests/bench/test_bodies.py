import json
from typing import Any

import pytest

from vdisagg.bench.asks import Ask, Message
from vdisagg.bench.bodies import PATHS, Endpoint, body
from vdisagg.errors import UsageError


def fields(ask: Ask, endpoint: Endpoint = "completions", **options: Any) -> dict[str, Any]:
    options.setdefault("running_usage", True)
    found: dict[str, Any] = json.loads(body("m", ask, endpoint=endpoint, **options))
    return found


def test_a_completion_of_exact_length_is_greedy_streamed_and_ends_nowhere_else() -> None:
    assert fields(Ask([5, 6], 7)) == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 7,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_a_chat_carries_messages() -> None:
    assert fields(Ask([Message("system", "be"), Message("user", "hi")], 7), "chat") == {
        "model": "m",
        "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_text_is_a_completions_prompt_or_a_chats_only_message() -> None:
    assert fields(Ask("hi", 1))["prompt"] == "hi"
    assert fields(Ask("hi", 1), "chat")["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_without_an_output_length_the_model_ends_where_it_likes(endpoint: Endpoint) -> None:
    asked = fields(Ask("hi", None), endpoint)
    assert not {"max_tokens", "max_completion_tokens", "ignore_eos"} & set(asked)


def test_strict_sends_nothing_but_openais_own_fields() -> None:
    plain = {"model", "temperature", "stream", "stream_options"}
    completion = fields(Ask("hi", 3), strict=True)
    assert set(completion) == plain | {"prompt", "max_tokens"}
    assert completion["stream_options"] == {"include_usage": True}
    chat = fields(Ask("hi", 3), "chat", strict=True)
    assert set(chat) == plain | {"messages", "max_completion_tokens"}


def test_running_usage_is_asked_for_only_where_wanted() -> None:
    assert fields(Ask("hi", 1), running_usage=False)["stream_options"] == {"include_usage": True}


def test_extra_fields_come_last() -> None:
    asked = fields(Ask("hi", 1), extra={"vllm_xargs": {"pair": "p0-d1"}, "temperature": 1})
    assert asked["vllm_xargs"] == {"pair": "p0-d1"}
    assert asked["temperature"] == 1


def test_a_prompt_of_the_other_endpoints_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="messages can't be a completion's"):
        fields(Ask([Message("user", "hi")], 1))
    with pytest.raises(UsageError, match="token ids can't be a chat's"):
        fields(Ask([5, 6], 1), "chat")


def test_each_endpoint_has_its_path() -> None:
    assert PATHS == {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
