"""One request between its ADD and its end, its legs' ids, and which legs it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.actions import Pair
from vdisagg.control.handover import Params
from vdisagg.control.phases import Instants

PROBE: Final = -1
"""In the place of an API server: our own requests."""


class Stage(Enum):
    """Which leg of a flight is under way; HELD: none, it waits for an engine that can take it."""

    NEW = auto()
    HELD = auto()
    PREFILL = auto()
    DECODE = auto()
    WHOLE = auto()


@dataclass(slots=True, eq=False)
class Flight:
    """One request. Times are of the controller's monotonic clock, in seconds."""

    api: int
    front_id: str
    request: wire.AddRequest
    """As it came."""
    frames: Sequence[bytes]
    sampling: Params | None
    """As they came, but for what a connector would obey."""
    started: float
    colocated: bool = False
    """Whether its client wants one engine to compute all of it; see mode.py."""
    timed: bool = True
    """Whether its beginning was this controller's to see."""
    proof: wire.AddRequest | None = None
    """Of a probe that has to prove its link: what the decode engine then computes alone."""

    # What the engines are asked for: the request itself, or the rest of its answer.
    asked: wire.AddRequest = field(init=False)
    asked_sampling: Params | None = field(init=False)
    compare: bool = False
    """Whether decode's first token has to equal prefill's."""

    salt: str = ""
    """In place of its own cache salt, where caches may hold something wrong."""

    # The present leg, and where the next one goes.
    stage: Stage = Stage.NEW
    prefill: str = ""
    decode: str = ""
    """Empty: it needs none."""
    at: str = ""
    """The instance that the leg runs on."""
    leg: str = ""
    leg_started: float = 0.0
    begun: bool = False
    """Whether the leg has produced output."""
    bound: str = ""
    """The decode engine that it is counted with; see placing.py."""

    # What prefill has said.
    token: int | None = None
    told: bool = False
    """Whether its token has been sent ahead of decode's; see early.py."""
    handle: msgspec.Raw = field(default_factory=lambda: wire.NIL)
    """Prefill's hand-over, from the end of its leg on."""
    source: str = ""
    """The prefill leg that it is of."""
    expired_before: int = 0
    """How many leases of that prefill engine had run out when the handle came."""
    prefill_stats: msgspec.Raw = field(default_factory=lambda: wire.NIL)
    instants: Instants = field(default_factory=lambda: Instants(0.0))
    """When what has happened, for those who ask; see phases.py."""
    matched: bool | None = None
    """Whether decode's first token did equal prefill's; None where that can't be told."""

    # The answer so far, and how often it had to be helped.
    emitted: list[int] = field(default_factory=list)
    """Tokens that the client has; of a probe, those of the present leg."""
    sent: bool = False
    """Whether the client has had any output."""
    redone: int = 0
    """How often it was begun again with no token sent."""
    refused: bool = False
    """Whether an engine has ended a leg of it with an error."""
    moved: int = 0
    """How often its answer was continued elsewhere."""
    latency_s: float = 0.0
    """Of a proof: how long its way over the link took."""
    over_link: list[int] = field(default_factory=list)
    """Of a proof: the tokens that came over the link."""
    alone_top: list[dict[int, float]] = field(default_factory=list)
    """Of a proof: log-probabilities of the likeliest tokens when decode computed alone."""

    def __post_init__(self) -> None:
        self.asked, self.asked_sampling = self.request, self.sampling

    @property
    def key(self) -> tuple[int, str]:
        """Under which name the front end knows it."""
        return self.api, self.front_id

    @property
    def legs(self) -> Legs:
        """Which legs it takes, of what is asked for now."""
        return legs_of(self.asked_sampling, colocated=self.colocated)

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
    microseconds, so that a controller started later never repeats an earlier one's ids, and knows
    them from its own."""

    def __init__(self, first: int) -> None:
        self._first = self._sequence = first

    def new(self, leg: str, api: int, front_id: str) -> str:
        """`leg`: p, d or w as in Stage, n for a nudge, r for a release."""
        self._sequence += 1
        return f"{leg}:{self._sequence:x}:{api}:{front_id}"

    @property
    def last(self) -> int:
        """The sequence number of the last one."""
        return self._sequence

    @staticmethod
    def sequence(leg: str) -> int:
        """The sequence number of one of ours."""
        return int(leg.split(":", 2)[1], 16)

    def is_foreign(self, leg: str) -> bool:
        """Whether an earlier controller has given this id to a leg of a request."""
        kind, _, rest = leg.partition(":")
        try:
            return kind in ("p", "d", "w") and int(rest.partition(":")[0], 16) <= self._first
        except ValueError:
            return False


class Legs(Enum):
    """Which legs a request takes."""

    BOTH = auto()
    PREFILL = auto()
    """One token: prefill's is the whole answer."""
    DECODE = auto()
    """What one engine has to compute from the prompt to the end."""
    ANYWHERE = auto()
    """What one engine is to compute so, of either role: its client wants that."""


def legs_of(sampling: Params | None, *, colocated: bool = False) -> Legs:
    """Pooling requests have no sampling parameters."""
    if colocated:
        return Legs.ANYWHERE
    if sampling is None or any(
        sampling.get(key) is not None for key in ("prompt_logprobs", "prompt_logprob_token_ids")
    ):
        return Legs.DECODE
    if sampling.get("max_tokens", 16) == 1:  # 16 is vLLM's default, which it leaves out
        return Legs.PREFILL
    return Legs.BOTH


def deterministic(sampling: Params | None) -> bool:
    """Whether both legs must sample the same first token. Prefill runs without `min_tokens`, so
    there it may sample the end of sequence that decode must not."""
    return (
        sampling is not None
        and sampling.get("temperature", 1.0) == 0
        and not sampling.get("min_tokens")
    )
