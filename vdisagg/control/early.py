"""When prefill's token may reach the client before decode has read the KV cache.

Prefill has sampled the first token long before decode can: decode still has to read the KV cache, and
to sample that token again. Where sampling is greedy both tokens are the same, so prefill's goes out at
once, and decode's is compared with it and dropped. Should they ever differ, the client has prefill's,
and the rest is computed from the prompt and that token: so the answer has to be one that can be
continued (continuation.py).
"""

from __future__ import annotations

from typing import Final

from vdisagg.control import wire
from vdisagg.control.continuation import hindrance
from vdisagg.control.flight import deterministic
from vdisagg.control.handover import Params

NOT_ON_PREFILL: Final = ("logprobs", "logprob_token_ids")
"""What the prefill leg does not ask for, so that its token would go out without."""
STOPS: Final = ("_all_stop_token_ids", "stop_token_ids")


def eligible(request: wire.AddRequest, sampling: Params) -> bool:
    """Whether prefill's token may be sent ahead, as far as can be told before it is known."""
    return (
        deterministic(sampling)
        and all(sampling.get(key) is None for key in NOT_ON_PREFILL)
        and not hindrance(request, sampling)
    )


def ends_answer(token: int, sampling: Params) -> bool:
    """Whether decode will end on this token: then it is decode's to send, with its finish reason."""
    return token == sampling.get("_eos_token_id") or any(
        token in (sampling.get(key) or ()) for key in STOPS
    )
