"""Small HTTP questions to an OpenAI server, with token ids in the answers."""

from __future__ import annotations

import http.client
import json
import random
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


def post(url: str, path: str, body: dict[str, Any], timeout_s: float = 60) -> tuple[int, Any]:
    """POST JSON; returns the status and the decoded body (text where it is no JSON)."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text


@dataclass(frozen=True)
class Answer:
    """What one choice said, and what the server counted."""

    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


def answer(url: str, path: str, body: dict[str, Any], *, stream: bool) -> Answer:
    """Ask for one choice, streaming or not."""
    asked = {**body, "return_token_ids": True}
    if not stream:
        status, reply = post(url, path, asked)
        assert status == 200, reply
        (choice,) = reply["choices"]
        return Answer(choice["token_ids"], choice["finish_reason"], *_counts(reply["usage"]))
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    status, text = post(url, path, asked)
    assert status == 200, text
    return _from_stream(text)


def _from_stream(text: str) -> Answer:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-2:]
    chunks = [json.loads(line) for line in lines[:-1]]
    assert not any("error" in chunk for chunk in chunks), chunks[-1]
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage") and not chunk["choices"]]
    assert len(usages) == 1, "one usage chunk, with no choices"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    tokens = [token for choice in choices for token in choice.get("token_ids") or ()]
    (finish,) = [c["finish_reason"] for c in choices if c["finish_reason"]]
    return Answer(tokens, finish, *_counts(usages[0]))


def _counts(usage: dict[str, int]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def random_prompt(length: int, seed: object = 0) -> list[int]:
    """Token ids of ordinary words in SmolLM2's vocabulary, which the tiny model shares."""
    rng = random.Random(f"{length} {seed}")
    return [rng.randrange(1000, 40000) for _ in range(length)]
