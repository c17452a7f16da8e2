"""One prefill→decode pair: when to beat it, and what the beats say. Pure: events in, actions out.

    cold → probing → warm ⇄ stale → down

A link is cold until both its ends are ready, and warm once a probe has gone the whole way: prefill,
KV transfer, decode, with prefill's token equal to decode's. Any success, a user's request too, counts
as a beat; an idle link is probed once an interval. `misses` failed probes in a row make it stale: it
is not routed, and probed until it works again. While it is not warm, MISMATCHES probes in a row whose
tokens differ make it down: decode does not read what prefill wrote. A link that is down stays so until
one of its ends is another engine. On a warm link a mismatch is counted, and shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from vdisagg.cluster.admin import LinkState

MISMATCHES: Final = 3
"""Greedy tokens can differ by rounding at a near-tie; three fresh prompts in a row do not."""

FIRST_CONTACT_S: Final = 30.0
"""The first transfer of a pair includes NIXL's handshake: seconds, 19 s measured in the worst case."""


@dataclass(frozen=True)
class Link:
    """State of one link. Times are of the controller's monotonic clock, in seconds."""

    state: LinkState = "cold"
    last_beat: float | None = None
    due: float = 0.0
    probing: bool = False
    missed: int = 0
    mismatched: int = 0
    mismatches: int = 0
    transfers: int = 0
    latency_s: float | None = None
    reason: str = ""

    @property
    def routable(self) -> bool:
        """Whether users' requests may go over it."""
        return self.state == "warm"

    def ends_ready(self, *, now: float) -> Link:
        """Both ends have become ready: prove the link before it is used."""
        return Link("probing", due=now, transfers=self.transfers, mismatches=self.mismatches)

    def end_lost(self, reason: str) -> Link:
        """An end is not ready any more."""
        return replace(self, state="cold", probing=False, reason=reason)

    def probe_due(self, *, now: float) -> bool:
        """Whether a probe is to be sent now."""
        return self.state not in ("cold", "down") and not self.probing and now >= self.due

    def probe_sent(self) -> Link:
        """A probe is on its way; there is never a second one."""
        return replace(self, probing=True)

    def probe_limit_s(self, interval_s: float) -> float:
        """How long a probe may take before it counts as missed."""
        return interval_s if self.last_beat is not None else FIRST_CONTACT_S

    def succeeded(
        self, *, now: float, latency_s: float, interval_s: float, probe: bool, matched: bool | None
    ) -> Link:
        """A request went the whole way. `matched`: whether prefill's token was decode's first; None
        where that can't be told (sampling)."""
        mismatches = self.mismatches + (matched is False)
        probing = self.probing and not probe
        if probe and matched is False and self.state != "warm":
            if self.mismatched + 1 >= MISMATCHES:
                reason = (
                    "decode's tokens differ from prefill's: the KV cache does not arrive intact"
                )
                return replace(
                    self, state="down", probing=False, mismatches=mismatches, reason=reason
                )
            return replace(
                self, probing=False, due=now, mismatches=mismatches, mismatched=self.mismatched + 1
            )
        if self.state in ("cold", "down"):
            return replace(self, probing=probing, mismatches=mismatches)
        # A user's success on a link that is not yet proved says nothing that a probe won't say.
        warm = self.state == "warm" or probe
        return replace(
            self,
            state="warm" if warm else self.state,
            last_beat=now,
            due=now + interval_s if warm else self.due,
            probing=probing,
            missed=0,
            mismatched=0,
            mismatches=mismatches,
            transfers=self.transfers + 1,
            latency_s=latency_s,
            reason="" if warm else self.reason,
        )

    def suspected(self, *, now: float) -> Link:
        """A user's transfer failed: find out at once whether the link still works."""
        return replace(self, due=now)

    def missed_beat(self, *, now: float, interval_s: float, misses: int, reason: str) -> Link:
        """A probe failed or took too long."""
        if self.state in ("cold", "down"):
            return replace(self, probing=False)
        missed = self.missed + 1
        gone = self.state == "warm" and missed >= misses
        return replace(
            self,
            state="stale" if gone else self.state,
            probing=False,
            missed=missed,
            due=now + min(interval_s, 1.0),
            reason=f"{missed} probes missed: {reason}",
        )
