"""One request between its ADD and its end, its legs' ids, and which leg comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.actions import Pair
from vdisagg.control.handover import Params

PROBE: Final = -1
"""In the place of an API server: our own requests."""


class Stage(Enum):
    """Which leg of a flight is under way."""

    PREFILL = auto()
    DECODE = auto()
    WHOLE = auto()


@dataclass(slots=True)
class Flight:
    """One request. Times are of the controller's monotonic clock, in seconds."""

    api: int
    front_id: str
    request: wire.AddRequest
    frames: Sequence[bytes]
    sampling: Params | None
    prefill: str
    decode: str
    stage: Stage
    at: str
    """The instance that the present leg runs on."""
    leg: str
    started: float
    leg_started: float
    compare: bool
    """Whether decode's first token has to equal prefill's."""
    token: int | None = None
    """Prefill's token."""
    told: bool = False
    """Whether it has been sent ahead of decode's; see early.py."""
    handle: msgspec.Raw = field(default_factory=lambda: wire.NIL)
    """Prefill's hand-over, from the end of its leg on."""
    prefill_stats: msgspec.Raw = field(default_factory=lambda: wire.NIL)
    matched: bool | None = None
    """Whether decode's first token did equal prefill's; None where that can't be told."""
    begun: bool = False
    """Whether the present leg has produced output."""

    @property
    def key(self) -> tuple[int, str]:
        """Under which name the front end knows it."""
        return self.api, self.front_id

    @property
    def link(self) -> Pair:
        """The pair that it takes."""
        return self.prefill, self.decode

    @property
    def unread(self) -> bool:
        """Whether its handle may still be waiting to be read."""
        return self.stage is Stage.DECODE and not self.begun


class LegIds:
    """`<leg>:<sequence>:<API server>:<front end's id>`. The sequence starts at the time of day in
    microseconds, so that a controller started later never repeats an earlier one's ids."""

    def __init__(self, first: int) -> None:
        self._sequence = first

    def new(self, leg: str, api: int, front_id: str) -> str:
        """`leg`: p, d or w as in Stage, n for a nudge, r for a release."""
        self._sequence += 1
        return f"{leg}:{self._sequence:x}:{api}:{front_id}"


def first_leg(sampling: Params | None, pair: Pair) -> tuple[Stage, str]:
    """The first leg of a request, and where it runs. Pooling requests have no sampling parameters."""
    if sampling is None or any(
        sampling.get(key) is not None for key in ("prompt_logprobs", "prompt_logprob_token_ids")
    ):
        return Stage.WHOLE, pair[1]
    if sampling.get("max_tokens", 16) == 1:  # 16 is vLLM's default, which it leaves out
        return Stage.WHOLE, pair[0]
    return Stage.PREFILL, pair[0]


def deterministic(sampling: Params | None) -> bool:
    """Whether both legs must sample the same first token. Prefill runs without `min_tokens`, so
    there it may sample the end of sequence that decode must not."""
    return (
        sampling is not None
        and sampling.get("temperature", 1.0) == 0
        and not sampling.get("min_tokens")
    )
