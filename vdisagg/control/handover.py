"""How a request's two legs are told to hand their KV cache over: one class per connector.

The parameters travel in `sampling_params.extra_args.kv_transfer_params`. A client can write there
too (the request body's `kv_transfer_params` and `vllm_xargs`), so `without_transfer` runs on every
request before anything else does.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from vdisagg.control import wire

TRANSFER_KEYS: Final = ("kv_transfer_params", "ec_transfer_params")
"""With `do_remote_prefill` and a `remote_host` of his choice a client could make an engine dial out,
or read another request's blocks."""

Params = dict[str, Any]


class Handover(Protocol):
    """What a connector needs on each leg, and to give blocks back. Sampling parameters go in and come out as
    plain maps."""

    def prefill(self, sampling: Params) -> Params:
        """The prefill leg's sampling parameters."""

    def decode(self, sampling: Params, output: wire.Output) -> Params | None:
        """The decode leg's, given the prefill leg's last output; None when that holds no handle."""

    def stand_in(self, sample: msgspec.Raw, leg: str) -> msgspec.Raw:
        """What does for the handle of another leg when its blocks are to be given back, unread. `sample`: a
        handle of the same engine's."""


def without_transfer(sampling: Params) -> Params:
    """Sampling parameters without anything that a connector would obey."""
    extra = sampling.get("extra_args")
    if not extra or not any(key in extra for key in TRANSFER_KEYS):
        return sampling
    kept = {key: value for key, value in extra.items() if key not in TRANSFER_KEYS}
    return {**sampling, "extra_args": kept or None}


def with_transfer(sampling: Params, transfer: Any) -> Params:
    """Sampling parameters that carry `transfer` to the engine's connector."""
    extra = sampling.get("extra_args") or {}
    return {**sampling, "extra_args": {**extra, "kv_transfer_params": transfer}}


ONE_TOKEN: Final[Params] = {
    "n": 1,
    "max_tokens": 1,
    "min_tokens": 0,
    "ignore_eos": True,  # the leg has to end by length: a stop would be an answer, not a hand-over
}
NOT_IN_PREFILL: Final = frozenset(
    {
        "stop",
        "stop_token_ids",
        "_all_stop_token_ids",
        "repetition_detection",
        "logprobs",
        "logprob_token_ids",
        "prompt_logprobs",
        "prompt_logprob_token_ids",
        "prompt_logprob_start",
    }
)
"""What ends a request early or asks for output that nobody reads."""


def one_token(sampling: Params) -> Params:
    """The same request, ended after one token whatever that token is."""
    return {k: v for k, v in sampling.items() if k not in NOT_IN_PREFILL} | ONE_TOKEN


class Nixl:
    """NixlConnector in pull mode: prefill's last output carries the handle, decode reads it.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py of vLLM 0.32.
    """

    REMOTE_DECODE: Final = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }

    def prefill(self, sampling: Params) -> Params:
        """See Handover."""
        return with_transfer(one_token(sampling), self.REMOTE_DECODE)

    def decode(self, sampling: Params, output: wire.Output) -> Params | None:
        """See Handover."""
        if output.kv_transfer_params == wire.NIL:
            return None
        return with_transfer(sampling, output.kv_transfer_params)

    def stand_in(self, sample: msgspec.Raw, leg: str) -> msgspec.Raw:
        """See Handover. Who does not read uses the engine's id and address, and the request's id."""
        handle: Params = wire.decode_value(sample)
        return wire.raw({**handle, "remote_request_id": leg, "remote_block_ids": []})


HANDOVERS: Final[dict[str, Handover]] = {"nixl": Nixl()}
