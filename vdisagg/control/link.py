"""One prefill→decode pair: when to beat it, and what the beats say. Pure: events in, values out.

    cold → probing → warm ⇄ stale          probing → down → warm
              ↑         │
              └─────────┘  a mismatch

A link is cold until both its ends are ready. Then it is *probing*: it must pass a proof, a probe whose
tokens are what the decode engine computes alone. A proof that fails makes it *down*: decode does not
read what prefill wrote, and nothing goes over it until PROOFS proofs in a row have passed.

A *warm* link is routed. Any success, a user's request too, counts as a beat; an idle one is probed once
a pace. When no beat has come for the heartbeat's limit and a probe is out, or when `misses` probes in a
row have failed, it is *stale*: not routed, and probed until something comes through. When prefill's
token and decode's first differ on it, it has to prove itself again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from vdisagg.cluster.admin import LinkState
from vdisagg.plan.model import Heartbeat

PROOFS: Final = 3
"""Proofs in a row that a link which has failed one must pass: a fault that comes and goes would pass
one now and then."""

FIRST_CONTACT_S: Final = 30.0
"""The first transfer of a pair includes NIXL's handshake: seconds, 19 s measured in the worst case."""

RETRY_S: Final = 1.0
"""After a missed probe the next one comes this soon."""


class Urgency(IntEnum):
    """Why the next probe is due; the higher ones go first where not all may go at once."""

    IDLE = 0
    SUSPECTED = 1
    """Something failed: a user's request, or what the engines report of their transfers."""
    DEMANDED = 2
    """Somebody asked for it over the admin socket: no bound holds it up."""


def pace_s(heartbeat: Heartbeat) -> float:
    """How long a link may be idle before it is probed, and how long a probe may wait.

    The interval; where a single miss is to be enough, half of it: a probe that is sent at the end of
    the limit could not be answered within it.
    """
    return min(heartbeat.interval_s, heartbeat.limit_s / 2)


class Link(msgspec.Struct, frozen=True):
    """State of one link. Times are of the controller's monotonic clock, in seconds."""

    state: LinkState = "cold"
    since: float = 0.0
    last_beat: float | None = None
    due: float = 0.0
    urgency: Urgency = Urgency.IDLE
    probing: bool = False
    asked: float | None = None
    """When the first of the probes was sent that nothing has answered since the last beat."""
    missed: int = 0
    proofs: int = 0
    """Passed in a row while down."""
    mismatches: int = 0
    failures: int = 0
    """Users' requests and probes that have failed on it."""
    transfers: int = 0
    latency_s: float | None = None
    probe_s: float | None = None
    """Latency of the last probe: what the next one may cost."""
    reason: str = ""

    @property
    def routable(self) -> bool:
        """Whether users' requests may go over it."""
        return self.state == "warm"

    @property
    def wants_proof(self) -> bool:
        """Whether the next probe has to be a proof."""
        return self.state in ("probing", "down")

    def ends_ready(self, *, now: float) -> Link:
        """Both ends have become ready: prove the link before it is used."""
        return Link(
            "probing",
            now,
            due=now,
            mismatches=self.mismatches,
            failures=self.failures,
            transfers=self.transfers,
        )

    def restored(self, *, now: float) -> Link:
        """It was warm under the controller before this one, which has left its engines as they were."""
        return replace(self, state="warm", since=now, due=now)

    def end_lost(self, reason: str, *, now: float) -> Link:
        """An end is not ready any more."""
        return replace(self, state="cold", since=now, probing=False, asked=None, reason=reason)

    def probe_due(self, *, now: float) -> bool:
        """Whether a probe is to be sent now."""
        return self.state != "cold" and not self.probing and now >= self.due

    def probe_sent(self, *, now: float) -> Link:
        """A probe is on its way; there is never a second one."""
        asked = now if self.asked is None else self.asked
        return replace(self, probing=True, asked=asked, urgency=Urgency.IDLE)

    def probe_limit_s(self, heartbeat: Heartbeat) -> float:
        """How long a probe's leg may wait before it counts as missed."""
        met = self.last_beat is not None or self.state == "warm"
        return pace_s(heartbeat) if met else FIRST_CONTACT_S

    def urge(self, urgency: Urgency, *, now: float) -> Link:
        """Find out at once whether the link works."""
        return replace(self, due=min(self.due, now), urgency=max(self.urgency, urgency))

    def failed(self, *, now: float) -> Link:
        """A user's request failed on it."""
        return replace(self, failures=self.failures + 1).urge(Urgency.SUSPECTED, now=now)

    def paused(self, pause_s: float) -> Link:
        """For so long nobody could have answered its probe: that time does not count."""
        return self if self.asked is None else replace(self, asked=self.asked + pause_s)

    def succeeded(
        self, *, now: float, next_due: float, latency_s: float, probe: bool, matched: bool | None
    ) -> Link:
        """A request, or a probe that was no proof, went the whole way.

        `matched`: whether prefill's token was decode's first; None where that can't be told (sampling).
        """
        link = replace(
            self,
            probing=self.probing and not probe,
            mismatches=self.mismatches + (matched is False),
            transfers=self.transfers + 1,
            probe_s=latency_s if probe else self.probe_s,
        )
        if self.state not in ("warm", "stale"):
            return link  # nothing but a proof says anything of it
        if matched is False:
            reason = "decode's first token was not prefill's: it has to prove itself"
            return replace(link, state="probing", since=now, due=now, missed=0, reason=reason)
        if self.state == "stale" and not probe:
            return link  # a user's late success, from before: its probes will tell
        return link._beaten(now=now, next_due=next_due, latency_s=latency_s)

    def proved(self, *, now: float, next_due: float, latency_s: float) -> Link:
        """A proof has passed."""
        link = replace(self, probing=False, probe_s=latency_s, transfers=self.transfers + 1)
        if self.state == "cold":
            return link
        beaten = link._beaten(now=now, next_due=next_due, latency_s=latency_s)
        if self.state == "down" and self.proofs + 1 < PROOFS:
            return replace(
                beaten,
                state="down",
                since=self.since,
                proofs=self.proofs + 1,
                reason=self.reason,
            )
        return beaten

    def refuted(self, *, now: float, next_due: float, reason: str) -> Link:
        """A proof has failed. `reason` says where the tokens differ."""
        if self.state == "cold":
            return replace(self, probing=False)
        return replace(
            self,
            state="down",
            since=self.since if self.state == "down" else now,
            due=next_due,
            probing=False,
            asked=None,
            missed=0,
            proofs=0,
            mismatches=self.mismatches + 1,
            failures=self.failures + 1,
            reason=f"decode does not read what prefill wrote: {reason}",
        )

    def missed_beat(
        self, *, now: float, next_due: float, heartbeat: Heartbeat, reason: str
    ) -> Link:
        """A probe failed or took too long. `next_due` is for a link that is down."""
        if self.state == "cold":
            return replace(self, probing=False)
        down = self.state == "down"
        link = replace(
            self,
            probing=False,
            missed=self.missed + 1,
            failures=self.failures + 1,
            proofs=0,
            due=next_due if down else now + min(heartbeat.interval_s, RETRY_S),
        )
        if down:
            return link  # that it once delivered something false outweighs that it now delivers nothing
        link = replace(link, reason=f"{link.missed} probes missed: {reason}")
        if self.state == "warm" and link.missed >= heartbeat.misses:
            return replace(link, state="stale", since=now)
        return link

    def aged(self, *, now: float, heartbeat: Heartbeat) -> Link:
        """Time has passed: a warm link without a beat for the limit is stale, once it was asked.

        One whose probe had to wait for its turn has what is left of the limit after a pace.
        """
        if self.state != "warm" or self.asked is None:
            return self
        beaten = self.since if self.last_beat is None else self.last_beat
        patience = heartbeat.limit_s - pace_s(heartbeat)
        if now < max(beaten + heartbeat.limit_s, self.asked + patience):
            return self
        because = f"; {self.reason}" if self.reason else ""
        reason = f"no beat for {now - beaten:.1f} s{because}"
        return replace(self, state="stale", since=now, reason=reason)

    def _beaten(self, *, now: float, next_due: float, latency_s: float) -> Link:
        return replace(
            self,
            state="warm",
            since=self.since if self.state == "warm" else now,
            last_beat=now,
            # A probe that was asked for since is owed all the same.
            due=self.due if self.urgency else next_due,
            asked=now if self.probing else None,
            missed=0,
            proofs=0,
            latency_s=latency_s,
            reason="",
        )
