"""Requests of our own: nudges, releases, probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.handover import Params, with_transfer

ONE_TOKEN: Final[Params] = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True}

LEAST_ANSWER: Final = 2
"""Tokens: a request for one takes no decode leg."""

PROBE_PRIORITY: Final = 2**31 - 1
"""Later than anybody's (lower goes first). An engine core that schedules by arrival ignores it; it is
the API server that refuses a priority there."""

TOP: Final = 2
"""Log probabilities that a computation alone is to show: enough to see a near tie."""

DUMMY: Final = wire.AddRequest(
    request_id="",
    prompt_token_ids=wire.raw([0]),
    mm_features=wire.NIL,
    sampling_params=ONE_TOKEN,
    pooling_params=wire.NIL,
    arrival_time=0.0,
    lora_request=wire.NIL,
    cache_salt=None,
    data_parallel_rank=None,
)


def nudge_request(leg: str, *, now: float) -> wire.AddRequest:
    """One token in, one token out: an engine without work takes a step."""
    return msgspec.structs.replace(DUMMY, request_id=leg, arrival_time=now)


def release_request(leg: str, handle: msgspec.Raw, *, now: float) -> wire.AddRequest:
    """Tells a decode engine that it will not read `handle`, and the engine tells prefill.

    Source: AsyncLLM.notify_kv_transfer_request_rejected of vLLM 0.32.
    """
    return msgspec.structs.replace(
        DUMMY,
        request_id=leg,
        arrival_time=now,
        sampling_params=with_transfer(ONE_TOKEN, handle),
        abort_immediately=True,
    )


def probe_size(*, block_size: int, max_model_len: int, canary_tokens: int) -> tuple[int, int]:
    """How many tokens a proof has in its prompt, and how many it asks for.

    The prompt is longer than a block, so that a whole one and a part of one move; the answer has at
    least two tokens, since prefill alone would answer one. Together they fit `max_model_len`; what is
    cut is the answer first.
    """
    length = max(1, min(block_size + 5, max_model_len - LEAST_ANSWER))
    return length, max(LEAST_ANSWER, min(canary_tokens, max_model_len - length))


def beat_size(*, block_size: int, max_model_len: int) -> tuple[int, int]:
    """The same of a probe that is no proof: it fills no block, so that no cache keeps anything of it, and
    no user's prompt has to leave one. Its KV moves all the same, as a part of a block."""
    return max(1, min(block_size - 1, max_model_len) - LEAST_ANSWER), LEAST_ANSWER


def probe_request(
    request_id: str, tokens: Sequence[int], *, max_tokens: int, salt: str, now: float
) -> wire.AddRequest:
    """A dummy request that goes the whole way, salted so that no prefix cache hides the transfer."""
    return msgspec.structs.replace(
        DUMMY,
        request_id=request_id,
        prompt_token_ids=wire.raw(list(tokens)),
        sampling_params={**ONE_TOKEN, "max_tokens": max_tokens},
        cache_salt=salt,
        arrival_time=now,
        priority=PROBE_PRIORITY,
    )


def alone_request(
    request_id: str, tokens: Sequence[int], *, max_tokens: int, salt: str, now: float
) -> wire.AddRequest:
    """The same for the decode engine alone, to hold a probe's answer against: it shows the likeliest
    tokens. `salt` must be another than the probe's: what that one has read lies in the prefix cache."""
    probe = probe_request(request_id, tokens, max_tokens=max_tokens, salt=salt, now=now)
    sampling = {**(probe.sampling_params or {}), "logprobs": TOP}
    return msgspec.structs.replace(probe, sampling_params=sampling)
