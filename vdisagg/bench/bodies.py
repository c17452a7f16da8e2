"""A request's JSON body out of what it asks: a completion's or a chat's, streamed and greedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from vdisagg.bench.asks import Ask, Message, Prompt
from vdisagg.errors import UsageError

Endpoint = Literal["completions", "chat"]

PATHS: dict[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}


def body(
    model: str,
    ask: Ask,
    *,
    endpoint: Endpoint,
    running_usage: bool,
    strict: bool = False,
    extra: Mapping[str, object] | None = None,
) -> bytes:
    """The body for `PATHS[endpoint]`. Raises UsageError where the prompt is not of its kind.

    An exact output length is max_tokens with ignore_eos: an answer then has no other end, and a
    min_tokens beside it would only cost the server a look at every step. Without one neither is
    sent; a chat then ends where the model ends it, a completion after 16 tokens, OpenAI's default.

    With `running_usage` every chunk tells how many tokens there are so far: the exact way to count
    where a chunk holds several, or half a character. `strict` leaves out what is not OpenAI's own
    (ignore_eos, running usage), for servers that refuse what they don't know: answers may then be
    shorter than asked for. `extra` comes last and so replaces fields of the same name.
    """
    fields: dict[str, Any] = {"model": model, **_prompt(ask.prompt, endpoint)}
    if ask.output_len is not None:
        fields[_limit(endpoint, strict)] = ask.output_len
        if not strict:
            fields["ignore_eos"] = True
    usage = {"include_usage": True}
    if running_usage and not strict:
        usage["continuous_usage_stats"] = True
    fields |= {"temperature": 0, "stream": True, "stream_options": usage, **(extra or {})}
    return msgspec.json.encode(fields)


def _limit(endpoint: Endpoint, strict: bool) -> str:
    """OpenAI's newer models refuse a chat's max_tokens. Ollama and others that people run
    themselves ignore the newer name and answer without an end (ollama/ollama #7125); vLLM knows both."""
    return "max_completion_tokens" if endpoint == "chat" and strict else "max_tokens"


def _prompt(prompt: Prompt, endpoint: Endpoint) -> dict[str, object]:
    chat = not isinstance(prompt, str) and any(isinstance(part, Message) for part in prompt)
    if endpoint == "completions":
        if chat:
            raise UsageError("a chat's messages can't be a completion's prompt; next: ask for chat")
        return {"prompt": prompt}
    if isinstance(prompt, str):
        return {"messages": [Message("user", prompt)]}
    if not chat:
        raise UsageError("token ids can't be a chat's message; next: ask for completions, or text")
    return {"messages": prompt}
