"""When prefill's token may reach the client before decode has read the KV cache.

Prefill has sampled the first token long before decode can: decode still has to read the KV cache, and
to sample that token again. Where sampling is greedy both tokens are the same, so prefill's goes out at
once, and decode's is compared with it and dropped. Should they ever differ, the client has prefill's,
and the decode engine computes the rest from the prompt and that token, without a transfer.

So a request is eligible when the rest can be computed that way: nothing may depend on which tokens
count as the prompt's and which as the answer's.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.flight import deterministic
from vdisagg.control.handover import Params

NEUTRAL: Final[Params] = {
    "structured_outputs": None,  # the grammar has consumed the first token in decode only
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "bad_words": None,
    "repetition_detection": None,
    "thinking_token_budget": None,
    "logprobs": None,  # prefill's leg does not ask for them
    "logprob_token_ids": None,
    "extra_args": None,  # a logits processor of the user's may count tokens
}
STOPS: Final = ("_all_stop_token_ids", "stop_token_ids")


def eligible(request: wire.AddRequest, sampling: Params) -> bool:
    """Whether prefill's token may be sent ahead, as far as can be told before it is known."""
    return (
        deterministic(sampling)
        and request.prompt_token_ids != wire.NIL
        and all(sampling.get(key, neutral) in (neutral, None) for key, neutral in NEUTRAL.items())
    )


def ends_answer(token: int, sampling: Params) -> bool:
    """Whether decode will end on this token: then it is decode's to send, with its finish reason."""
    return token == sampling.get("_eos_token_id") or any(
        token in (sampling.get(key) or ()) for key in STOPS
    )


def rest(request: wire.AddRequest, token: int, sampling: Params) -> tuple[wire.AddRequest, Params]:
    """The request for what comes after `token`, to be computed by one engine alone."""
    prompt = wire.raw([*wire.decode_value(request.prompt_token_ids), token])
    left = {**sampling, "max_tokens": sampling.get("max_tokens", 16) - 1}
    return msgspec.structs.replace(request, prompt_token_ids=prompt), left
