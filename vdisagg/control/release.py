"""Handles that no decode leg will read: given back through a decode engine. Pure.

Prefill keeps a finished leg's blocks until decode has read them, or until its lease ends. A decode
engine that is told that it won't read them (an ADD with `abort_immediately`) tells prefill, but only
when it takes a step, and an engine without work takes none. So every release is followed by a
*nudge*: a dummy request of one token.

An abort may cross prefill's last output on the way. The leg's id therefore stays on a list of
*abandoned* legs until the engine has ended one that was sent after the abort, or the lease would have
ended; a handle that still arrives is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.actions import Action, Pair, Send
from vdisagg.control.dummies import nudge_request, release_request
from vdisagg.control.flight import PROBE, LegIds
from vdisagg.control.ledger import Ledger, NoLedger

LEASE_S: Final = 60.0
"""Longer than prefill keeps a handle (30 s by default): an abandoned leg is forgotten after it."""


@dataclass(frozen=True, slots=True)
class _Abandoned:
    """A prefill leg whose request is gone, but whose handle may still arrive."""

    link: Pair
    expires: float
    before: int
    """Legs with higher sequence numbers were sent after its abort."""


@dataclass(frozen=True, slots=True)
class _Owed:
    """A handle that nobody could be asked to give back when it was time."""

    leg: str
    """Prefill's."""
    link: Pair
    handle: msgspec.Raw
    expires: float


class Releases:
    """Abandoned legs and nudges. `links` tells which pairs work, at the time of asking."""

    def __init__(
        self, links: Callable[[], Sequence[Pair]], ids: LegIds, ledger: Ledger | None = None
    ) -> None:
        self._links = links
        self._ids = ids
        self._ledger = ledger or NoLedger()
        self._abandoned: dict[str, dict[str, _Abandoned]] = {}
        """By prefill engine and leg."""
        self._owed: list[_Owed] = []
        self._entrusted: dict[str, list[_Owed]] = {}
        """Releases by the engine that was told of them, until it is sure that it knows."""
        self._nudges: dict[str, str] = {}
        self._nudge_again: set[str] = set()

    def abandon(self, leg: str, link: Pair, *, now: float) -> None:
        """Nobody waits for this prefill leg any more."""
        abandoned = _Abandoned(link, now + LEASE_S, self._ids.last)
        self._abandoned.setdefault(link[0], {})[leg] = abandoned

    def caught_up(self, prefill: str, leg: str) -> None:
        """An engine has ended this leg: what it had to say of those abandoned before, it has said."""
        if abandoned := self._abandoned.get(prefill):
            sequence = self._ids.sequence(leg)
            self._forget(abandoned, [k for k, v in abandoned.items() if v.before < sequence])

    def unsure(self, prefill: str) -> list[str]:
        """Abandoned legs of an engine that can't be reached: it may not have heard of the abort, or what it
        has said may be lost. They are somebody else's from now on."""
        return [*self._abandoned.pop(prefill, ())]

    def _forget(self, abandoned: dict[str, _Abandoned], legs: Iterable[str]) -> None:
        for leg in legs:
            del abandoned[leg]
            self._ledger.over(leg)

    def release(
        self, link: Pair, handle: msgspec.Raw, *, leg: str, now: float, lost: str = ""
    ) -> list[Action]:
        """Give the blocks of prefill's `leg` back, through a decode engine that has met its prefill engine.

        With none but one that is `lost`, as soon as there is one, or else the end of the lease does it.
        """
        links = self._links()
        others = [other for other in links if other[0] == link[0]]
        decode = (link if link in links or not others else others[0])[1]
        if decode in (lost, ""):
            self._owed.append(_Owed(leg, link, handle, now + LEASE_S))
            return []
        owed = _Owed(leg, link, handle, now + LEASE_S)
        self._entrusted.setdefault(decode, []).append(owed)
        request = release_request(self._ids.new("r", PROBE, decode), handle, now=now)
        return [Send(decode, wire.ADD, wire.encode(request)), *self.nudge(decode, now=now)]

    def nudge(self, instance: str, *, now: float) -> list[Action]:
        """Make an idle engine step once, so that it reports to its peers, and to us.

        One nudge is under way at a time; what is asked for meanwhile makes one more after it.
        """
        if instance in self._nudges:
            self._nudge_again.add(instance)
            return []
        leg = self._nudges[instance] = self._ids.new("n", PROBE, instance)
        return [Send(instance, wire.ADD, wire.encode(nudge_request(leg, now=now)))]

    def is_nudge(self, instance: str, output: wire.Output) -> bool:
        """Whether an output is the end of the nudge that is under way."""
        return self._nudges.get(instance) == output.request_id and output.finish_reason is not None

    def stepped(self, instance: str, *, now: float) -> list[Action]:
        """A nudge has been answered: by now the engine has done what it was told before, unless one
        more step is owed."""
        del self._nudges[instance]
        if instance in self._nudge_again:
            self._nudge_again.discard(instance)
            return self.nudge(instance, now=now)
        for given in self._entrusted.pop(instance, ()):
            self._ledger.over(given.leg)
        return []

    def stray(self, instance: str, output: wire.Output, *, now: float) -> list[Action]:
        """An output of a leg that has no flight: a release, an abandoned or aborted leg."""
        abandoned = self._abandoned.get(instance, {}).pop(output.request_id, None)
        if abandoned is None:
            return []
        leg, handle = output.request_id, output.kv_transfer_params
        if handle == wire.NIL:
            self._ledger.over(leg)
            return []
        return self.release(abandoned.link, handle, leg=leg, now=now)

    def instance_lost(self, name: str) -> None:
        """Its nudge will not be answered, and somebody else has to give back what it was told to."""
        self._owed += self._entrusted.pop(name, ())
        self._nudges.pop(name, None)
        self._nudge_again.discard(name)

    def renewed(self, name: str) -> None:
        """Another engine core has taken the place: what the one before kept is gone."""
        self._abandoned.pop(name, None)
        self._owed = [one for one in self._owed if one.link[0] != name]

    def tick(self, *, now: float) -> list[Action]:
        """Give back what could not be before, and forget what the end of its lease has."""
        for abandoned in self._abandoned.values():
            self._forget(abandoned, [k for k, v in abandoned.items() if v.expires <= now])
        owed, self._owed = self._owed, []
        actions: list[Action] = []
        for one in owed:
            if any(link[0] == one.link[0] for link in self._links()):
                actions += self.release(one.link, one.handle, leg=one.leg, now=now)
            elif one.expires > now:
                self._owed.append(one)
            else:
                self._ledger.over(one.leg)
        return actions
