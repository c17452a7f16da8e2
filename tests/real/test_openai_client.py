"""The official OpenAI client, against the demo's real model behind two API servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from real.ask import answer, post, random_prompt
from real.conftest import RealCluster

pytestmark = pytest.mark.real

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(scope="module")
def client(smol: RealCluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smol.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smol"]


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="smol", messages=QUESTION, temperature=0, max_completion_tokens=24
    )
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 24


def test_a_streamed_chat_says_the_same_and_its_usage_comes_last(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="smol", messages=QUESTION, temperature=0, max_tokens=24
    )
    with client.chat.completions.create(
        model="smol",
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    # What a cache knew of the prompt may differ: the second one comes after the first.
    ours, theirs = chunks[-1].usage, whole.usage
    assert ours
    assert theirs
    unsure = {"prompt_tokens_details"}
    assert ours.model_dump(exclude=unsure) == theirs.model_dump(exclude=unsure)


def test_without_include_usage_no_chunk_is_without_choices(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="smol", messages=QUESTION, temperature=0, max_tokens=4, stream=True
    ) as stream:
        assert all(chunk.choices for chunk in stream)


def test_a09_three_choices_with_temperature(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="smol", messages=QUESTION, n=3, temperature=0.8, max_tokens=16
    )
    assert sorted(choice.index for choice in reply.choices) == [0, 1, 2]
    assert all(choice.message.content for choice in reply.choices)
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 48


def choices_of(url: str, body: dict[str, Any], count: int, *, stream: bool) -> list[list[int]]:
    """The token ids of each choice, by its index."""
    status, reply = post(
        url, "/v1/completions", {**body, "stream": stream, "return_token_ids": True}
    )
    assert status == 200, reply
    if stream:
        chunks = [json.loads(x[6:]) for x in reply.splitlines() if x.startswith("data: {")]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
    else:
        choices = reply["choices"]
    got: list[list[int]] = [[] for _ in range(count)]
    for choice in choices:
        got[choice["index"]] += choice["token_ids"] or []
    return got


LIST = [random_prompt(length, "list") for length in (3, 128, 643)]


@pytest.mark.parametrize("stream", [False, True])
def test_a09_a_list_of_prompts_is_answered_in_order(
    smol: RealCluster, plain_smol: str, stream: bool
) -> None:
    expected = []
    for prompt in LIST:
        one = {"model": "plain", "prompt": prompt, "max_tokens": 8, "temperature": 0}
        expected.append(answer(plain_smol, "/v1/completions", one, stream=False).token_ids)
    body = {"model": "smol", "prompt": LIST, "max_tokens": 8, "temperature": 0}
    assert choices_of(smol.url, body, 3, stream=stream) == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a09_a_list_of_prompts_with_several_choices_each(smol: RealCluster, stream: bool) -> None:
    body = {"model": "smol", "prompt": LIST, "n": 3, "max_tokens": 8, "temperature": 0.8}
    body |= {"ignore_eos": True}
    got = choices_of(smol.url, body, 9, stream=stream)
    assert [len(tokens) for tokens in got] == [8] * 9


def test_a08_log_probabilities_have_one_entry_a_token_and_equal_a_plain_engines(
    smol: RealCluster, plain_smol: str
) -> None:
    body = {"prompt": random_prompt(300), "max_tokens": 5, "temperature": 0, "logprobs": 3}
    _, ours = post(smol.url, "/v1/completions", {**body, "model": "smol"})
    _, theirs = post(plain_smol, "/v1/completions", {**body, "model": "plain"})
    ours, theirs = (reply["choices"][0]["logprobs"] for reply in (ours, theirs))
    assert ours["tokens"] == theirs["tokens"]
    assert len(ours["token_logprobs"]) == 5
    assert ours["token_logprobs"] == pytest.approx(theirs["token_logprobs"], abs=0.02)


def test_chat_log_probabilities(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="smol",
        messages=QUESTION,
        temperature=0,
        max_tokens=5,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 5
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)


@pytest.mark.parametrize(
    "options",
    [
        {"echo": True, "logprobs": 1, "max_tokens": 4},
        {"prompt_logprobs": 1, "max_tokens": 4},
        {"prompt_logprobs": 2, "max_tokens": 1},
    ],
    ids=["echo", "prompt", "prompt, one token"],
)
def test_a08_prompt_log_probabilities_are_right_and_the_engines_live(
    smol: RealCluster, plain_smol: str, options: dict[str, Any]
) -> None:
    body = {"prompt": random_prompt(200), "temperature": 0, **options}
    status, ours = post(smol.url, "/v1/completions", {**body, "model": "smol"})
    assert status == 200, ours
    _, theirs = post(plain_smol, "/v1/completions", {**body, "model": "plain"})
    ours, theirs = (reply["choices"][0] for reply in (ours, theirs))
    assert ours["text"] == theirs["text"]
    assert len(ours["prompt_logprobs"]) == 200
    assert ours["prompt_logprobs"][0] is None
    for mine, other in zip(ours["prompt_logprobs"][1:], theirs["prompt_logprobs"][1:], strict=True):
        assert mine.keys() == other.keys()
        for token in mine:
            assert mine[token]["logprob"] == pytest.approx(other[token]["logprob"], abs=0.02)
    status, reply = post(
        smol.url, "/v1/completions", {"model": "smol", "prompt": "Hello", "max_tokens": 2}
    )
    assert status == 200, reply


def test_stop_strings_end_the_answer(client: openai.OpenAI) -> None:
    prompt = "Count: 1, 2, 3, 4, 5, 6,"
    free = client.completions.create(model="smol", prompt=prompt, temperature=0, max_tokens=30)
    stop = free.choices[0].text[6:9]
    cut = client.completions.create(
        model="smol", prompt=prompt, temperature=0, max_tokens=30, stop=[stop]
    )
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == free.choices[0].text.split(stop)[0]


def test_a06_min_tokens_and_the_clients_limits_hold(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "Say hi."}],
        temperature=0,
        max_completion_tokens=50,
        extra_body={"min_tokens": 40},
    )
    assert reply.usage is not None
    assert 40 <= reply.usage.completion_tokens <= 50
    short = client.chat.completions.create(
        model="smol", messages=QUESTION, temperature=0, max_completion_tokens=3
    )
    assert short.usage is not None
    assert short.usage.completion_tokens == 3
    assert short.choices[0].finish_reason == "length"
    # /v1/completions' own default is 16 tokens
    default = client.completions.create(model="smol", prompt="One, two,", temperature=0)
    assert default.usage is not None
    assert default.usage.completion_tokens <= 16


def test_json_schema_output_fits_the_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "London"]},
            "large": {"type": "boolean"},
        },
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    reply = client.chat.completions.create(
        model="smol",
        messages=QUESTION,
        temperature=0,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
    )
    said = json.loads(reply.choices[0].message.content or "")
    assert said["city"] in ("Paris", "London")
    assert isinstance(said["large"], bool)


def test_a_required_tool_is_called_as_by_a_plain_engine(
    client: openai.OpenAI, plain_smol: str
) -> None:
    """What a model of this size puts into the arguments is its own affair; it must be the same."""
    with openai.OpenAI(base_url=f"{plain_smol}/v1", api_key="none") as plain:
        calls = []
        for api, model in ((client, "smol"), (plain, "plain")):
            reply = api.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "What is the weather in Paris?"}],
                tools=WEATHER,
                tool_choice="required",
                temperature=0,
                max_tokens=120,
            )
            (call, *_) = reply.choices[0].message.tool_calls or []
            assert call.type == "function"
            calls.append((call.function.name, call.function.arguments))
    assert calls[0] == calls[1]
    assert calls[0][0] == "get_weather"
    json.loads(calls[0][1])


def test_a13_one_client_id_for_two_requests_at_once(smol: RealCluster, plain_smol: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    prompts = [random_prompt(200, "id a"), random_prompt(200, "id b")]

    def ask(prompt: list[int]) -> list[int]:
        body = {"model": "smol", "prompt": prompt, "max_tokens": 20, "temperature": 0}
        body |= {"request_id": "mine"}
        return answer(smol.url, "/v1/completions", body, stream=False).token_ids

    with ThreadPoolExecutor(2) as pool:
        ours = list(pool.map(ask, prompts))
    for prompt, tokens in zip(prompts, ours, strict=True):
        body = {"model": "plain", "prompt": prompt, "max_tokens": 20, "temperature": 0}
        assert tokens == answer(plain_smol, "/v1/completions", body, stream=False).token_ids


def test_metrics_of_the_front_end_count_requests(smol: RealCluster) -> None:
    import urllib.request

    def count() -> float:
        with urllib.request.urlopen(f"{smol.url}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        names = ("vllm:time_to_first_token_seconds_count", "vllm:e2e_request_latency_seconds_count")
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(names))

    before = count()
    post(smol.url, "/v1/completions", {"model": "smol", "prompt": "Hello", "max_tokens": 3})
    assert count() == before + 2
