"""Requests and outputs as short as a test can say them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vdisagg.control import wire
from vdisagg.control.actions import Action, Send

PROMPT = (11, 12, 13)
GREEDY = {"temperature": 0.0, "max_tokens": 8, "logprobs": 1}
"""Greedy, so that both legs sample the same; with log-probabilities, so that no token goes ahead."""


def request(
    request_id: str, sampling: dict[str, Any] | None = GREEDY, **changes: Any
) -> wire.AddRequest:
    """An ADD as a front end sends it; `sampling` None makes it a pooling request."""
    fields: dict[str, Any] = {
        "request_id": request_id,
        "prompt_token_ids": wire.raw(list(PROMPT)),
        "mm_features": wire.NIL,
        "sampling_params": sampling,
        "pooling_params": wire.NIL if sampling is not None else wire.raw({"task": "embed"}),
        "arrival_time": 5.0,
        "lora_request": wire.NIL,
        "cache_salt": None,
        "data_parallel_rank": None,
    }
    return wire.AddRequest(**{**fields, **changes})


def add(instance: str, asked: wire.AddRequest, frames: Sequence[bytes] = ()) -> Send:
    """The action that sends `asked` to an engine."""
    return Send(instance, wire.ADD, wire.encode(asked), frames)


def abort(instance: str, *legs: str) -> Send:
    """The action that aborts legs on an engine."""
    return Send(instance, wire.ABORT, wire.encode(list(legs)))


def handle(leg: str) -> dict[str, Any]:
    """What prefill hands over, reduced to what the tests tell apart."""
    return {"do_remote_prefill": True, "remote_request_id": leg}


def outputs(*given: wire.Output, timestamp: float = 50.0) -> wire.Outputs:
    """One step of an engine."""
    return wire.Outputs(outputs=list(given), timestamp=timestamp)


def prefilled(leg: str, token: int = 7, **changes: Any) -> wire.Output:
    """A prefill leg's last output."""
    fields: dict[str, Any] = {
        "finish_reason": wire.LENGTH,
        "kv_transfer_params": wire.raw(handle(leg)),
        "prefill_stats": wire.raw({"num_cached_tokens": 2}),
    }
    return wire.Output(leg, [token], **{**fields, **changes})


def sends(actions: Sequence[Action]) -> list[tuple[str, str]]:
    """What goes to engines, as (instance, `ADD LEG` or `ABORT LEG …`)."""
    found = []
    for action in actions:
        if isinstance(action, Send) and action.kind == wire.ADD:
            found.append((action.instance, f"ADD {wire.decode_add(action.payload).request_id}"))
        elif isinstance(action, Send):
            found.append((action.instance, " ".join(["ABORT", *wire.decode_ids(action.payload)])))
    return found
