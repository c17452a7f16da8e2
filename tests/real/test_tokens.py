"""Through prefill and decode, over the KV transfer, come the tokens that one plain engine gives."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from real.ask import Answer, answer, post, random_prompt
from real.conftest import B, RealCluster

pytestmark = pytest.mark.real

LENGTHS = [1, B - 1, B, B + 1, 2 * B, 5 * B + 3]
LIMITS = [1, 2, 12]
MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(params=["tiny", "smol"])
def pair(request: pytest.FixtureRequest) -> tuple[RealCluster, str]:
    """A cluster, and the URL of a plain engine on the same model."""
    name = request.param
    return request.getfixturevalue(name), request.getfixturevalue(f"plain_{name}")


def completion(url: str, model: str, prompt: Any, limit: int, *, stream: bool) -> Answer:
    body = {"model": model, "prompt": prompt, "max_tokens": limit, "temperature": 0}
    return answer(url, "/v1/completions", body, stream=stream)


def chat(url: str, model: str, content: str, limit: int, *, stream: bool) -> Answer:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_completion_tokens": limit,
        "temperature": 0,
    }
    return answer(url, "/v1/chat/completions", body, stream=stream)


def content_of(url: str, length: int) -> str:
    """A chat message whose whole prompt, chat template included, has `length` tokens."""
    content = "word"
    while True:
        messages = [{"role": "user", "content": content}]
        status, reply = post(
            url, "/tokenize", {"messages": messages, "add_generation_prompt": True}
        )
        assert status == 200, reply
        if reply["count"] == length:
            return content
        assert reply["count"] < length, f"the chat template alone has {reply['count']} tokens"
        content += " word" * max(1, length - reply["count"])


@MODES
@pytest.mark.parametrize("length", LENGTHS)
def test_a01_a03_a04_completions_equal_a_plain_engines(
    pair: tuple[RealCluster, str], length: int, stream: bool
) -> None:
    cluster, plain = pair
    for seed, limit in itertools.product(range(2), LIMITS):
        prompt = random_prompt(length, seed)
        ours = completion(cluster.url, cluster.model, prompt, limit, stream=stream)
        assert ours == completion(plain, "plain", prompt, limit, stream=stream)
        assert ours.prompt_tokens == length
        assert ours.completion_tokens == len(ours.token_ids) <= limit


@MODES
@pytest.mark.parametrize("length", LENGTHS[1:])
def test_a01_a04_chat_completions_equal_a_plain_engines(
    pair: tuple[RealCluster, str], length: int, stream: bool
) -> None:
    cluster, plain = pair
    content = content_of(plain, length)
    for limit in LIMITS:
        ours = chat(cluster.url, cluster.model, content, limit, stream=stream)
        assert ours == chat(plain, "plain", content, limit, stream=stream)
        assert ours.prompt_tokens == length
        assert ours.completion_tokens == len(ours.token_ids) <= limit


def test_a01_twenty_long_prompts_with_an_instruction_at_the_end(
    pair: tuple[RealCluster, str],
) -> None:
    cluster, plain = pair
    for number in range(20):
        filler = f"Line {number}: the quick brown fox jumps over the lazy dog. " * 40
        prompt = f"{filler}\nNow count from {number} to {number + 5}:"
        ours = completion(cluster.url, cluster.model, prompt, 32, stream=False)
        assert ours.prompt_tokens >= 4 * B
        assert ours == completion(plain, "plain", prompt, 32, stream=False)


def test_the_kv_cache_really_moves(tiny: RealCluster) -> None:
    """The decode engine's connector statistics count one transfer a request, and no failure."""
    before = tiny.idle()
    for seed in range(5):
        completion(tiny.url, tiny.model, random_prompt(3 * B, f"moves {seed}"), 4, stream=False)
    after = tiny.idle()
    (was,) = [i for i in before.instances if i.role == "decode"]
    (now,) = [i for i in after.instances if i.role == "decode"]
    probes = after.links[0].transfers - before.links[0].transfers - 5
    assert now.kv_transfers - was.kv_transfers == 5 + probes
    assert now.kv_failures == was.kv_failures
    assert after.links[0].mismatches == before.links[0].mismatches


@pytest.mark.parametrize("length", [1, B - 1, B, B + 1, 2 * B])
def test_a03_no_length_of_prompt_leaves_blocks_behind(tiny: RealCluster, length: int) -> None:
    for seed in range(50):
        prompt = random_prompt(length, f"leaves {seed}")
        completion(tiny.url, tiny.model, prompt, 2, stream=bool(seed % 2))
    tiny.idle()


@MODES
def test_a10_cached_tokens_are_prefills_and_usage_is_exact(tiny: RealCluster, stream: bool) -> None:
    prompt = random_prompt(3 * B + 116, f"cached {stream}")
    for cached in (0, 3 * B):
        usage = usage_of(tiny, prompt, 5, stream=stream)
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached
        counts = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
        assert counts == (len(prompt), 5, len(prompt) + 5)


def test_a10_a_stream_has_usage_only_when_asked_for(tiny: RealCluster) -> None:
    body = {"model": tiny.model, "prompt": random_prompt(10), "max_tokens": 5, "stream": True}
    status, text = post(tiny.url, "/v1/completions", body)
    assert status == 200
    assert '"usage":{' not in text


def usage_of(
    cluster: RealCluster, prompt: list[int], limit: int, *, stream: bool
) -> dict[str, Any]:
    """What the server counted, where it stands once."""
    body = {"model": cluster.model, "prompt": prompt, "max_tokens": limit, "temperature": 0}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    status, reply = post(cluster.url, "/v1/completions", body)
    assert status == 200, reply
    if stream:
        *_, last, done = (line[6:] for line in reply.splitlines() if line.startswith("data: "))
        assert done == "[DONE]"
        assert reply.count('"usage":{') == reply.count('"choices":[]') == 1
        reply = json.loads(last)
        assert reply["choices"] == []
    return dict(reply["usage"])
