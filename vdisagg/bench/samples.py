"""What was measured of one request. All times are seconds; instants count from the load's start."""

from __future__ import annotations

import msgspec


class Phases(msgspec.Struct, frozen=True):
    """Where one request's time went, by our controller's clock; None where it had no such phase.

    They follow each other: together they are the time from the controller's receiving to its last output.
    """

    prefill: str
    """The instance that computed the prompt; empty: the decode one did."""
    decode: str
    """The instance that answered."""
    queue_s: float
    """Held by the controller, then waiting in the prefill engine's own queue."""
    prefill_s: float | None
    """From there until prefill's token was there."""
    transfer_s: float | None
    """From the decode leg's sending to decode's first token: its queue, the transfer and one step."""
    decode_s: float
    """From there to the end; of a request that one engine computed whole, all after its queue."""


class Sample(msgspec.Struct, frozen=True):
    """One request. `failure` names its kind where it failed, and then it counts in no latency."""

    number: int
    due_s: float
    sent_s: float
    first_s: float | None = None
    """When the first chunk that brought a token was read."""
    last_s: float | None = None
    """When the last chunk that brought a token was read."""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens that a prefix cache answered for, where the front end tells."""
    output_tokens: int = 0
    first_tokens: int = 1
    """How many tokens the first chunk brought."""
    gaps_s: list[float] | None = None
    """The time to each token after the first chunk's; None where chunks' sizes are not known."""
    failure: str | None = None
    detail: str = ""
    failed_s: float | None = None
    """When it had failed; None where it did not, and in older files."""
    request_id: str = ""
    """What it was sent as (X-Request-Id)."""
    phases: Phases | None = None
    """Where the server is ours and has told."""

    @property
    def late_s(self) -> float:
        """How long after it was due the request was sent."""
        return self.sent_s - self.due_s

    @property
    def end_s(self) -> float:
        """When it was over: its last token, or its failure. Never before its sending; where no more
        is known of it, that is all there is."""
        found = self.last_s if self.failed_s is None else self.failed_s
        return self.sent_s if found is None else max(found, self.sent_s)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from the moment of sending."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def e2e_s(self) -> float | None:
        """From the moment of sending to the last token: neither usage nor [DONE] prolongs it."""
        return None if self.last_s is None else self.last_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first chunk's. None when there is no such token."""
        rest = self.output_tokens - self.first_tokens
        if self.first_s is None or self.last_s is None or rest < 1:
            return None
        return (self.last_s - self.first_s) / rest
