"""When an answer that has begun can be computed on by another engine, and how.

The rest of an answer is what a model says after the prompt and the tokens that the client already has.
So an engine is asked for just that: a longer prompt, and fewer tokens to come. This is right when the
next token depends on the tokens before it alone, and on nothing that an engine keeps beside them: not
on which of them are the prompt's, and not on a random generator that has been running.

It is right for sampling without a seed too: the rest is drawn from the same distribution as it would
have been. n > 1 arrives as n requests, each of which is continued on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.handover import Params

HINDRANCES: Final[dict[str, tuple[Any, str]]] = {
    "structured_outputs": (None, "structured output: the grammar has consumed the tokens so far"),
    "presence_penalty": (0.0, "presence_penalty counts the answer's tokens only"),
    "frequency_penalty": (0.0, "frequency_penalty counts the answer's tokens only"),
    "repetition_penalty": (1.0, "repetition_penalty is active"),
    "bad_words": (None, "bad_words looks at the answer's tokens only"),
    "repetition_detection": (None, "repetition_detection looks at the answer's tokens only"),
    "thinking_token_budget": (None, "thinking_token_budget counts the answer's tokens"),
    "watermarking": (False, "a watermark may depend on where the answer begins"),
    "extra_args": (None, "its extra_args may be a logits processor's that counts tokens"),
    "prompt_logprobs": (None, "prompt_logprobs belong to the prompt that was sent"),
    "prompt_logprob_token_ids": (None, "prompt logprobs belong to the prompt that was sent"),
}
"""Sampling parameters, the value with which each says nothing, and why any other is a hindrance."""


def hindrance(request: wire.AddRequest, sampling: Params | None) -> str:
    """Why an answer can't be continued by another engine; empty when it can."""
    if sampling is None:
        return "pooling has no tokens to go on from"
    if request.prompt_token_ids == wire.NIL:
        return "its prompt is embeddings, not tokens"
    if request.mm_features not in (wire.NIL, EMPTY):
        return "its multi-modal input may not be in another engine's cache"
    if sampling.get("seed") is not None and sampling.get("temperature", 1.0) != 0:
        return "it is sampled with a seed, whose generator has advanced"
    for name, (neutral, why) in HINDRANCES.items():
        if sampling.get(name, neutral) not in (neutral, None, [], {}):
            return why
    return ""


EMPTY: Final = wire.raw([])


def rest(
    request: wire.AddRequest, sampling: Params, emitted: Sequence[int]
) -> tuple[wire.AddRequest, Params]:
    """The request for what comes after `emitted`, the tokens that the client has."""
    prompt = wire.raw([*wire.decode_value(request.prompt_token_ids), *emitted])
    left = {**sampling, "max_tokens": sampling.get("max_tokens", 16) - len(emitted)}
    if sampling.get("min_tokens"):
        left["min_tokens"] = max(0, sampling["min_tokens"] - len(emitted))
    return msgspec.structs.replace(request, prompt_token_ids=prompt), left
