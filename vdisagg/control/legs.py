"""Legs under way: their ids and loads, and those on engines that can't be reached at the moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import msgspec

from vdisagg.control import wire
from vdisagg.control.actions import Action, Pair, Send, Tainted
from vdisagg.control.flight import PROBE, Flight, LegIds, Stage
from vdisagg.control.handover import Params
from vdisagg.control.ledger import Ledger
from vdisagg.control.placing import Placing
from vdisagg.control.release import Releases
from vdisagg.control.unheard import Unheard


@dataclass(frozen=True, slots=True)
class Orphan:
    """A leg on an engine that can't be reached, for a request that went elsewhere."""

    leg: str
    link: Pair
    handle: msgspec.Raw
    """NIL: none that is unread."""
    source: str = ""
    """The prefill leg that the handle is of."""
    users: bool = False
    """Whether what it reads may answer other requests: a probe's salt is its own."""
    stale: bool = False
    """Whether its handle has been given back without it: prefill may have written over the blocks."""


class LegBook:
    """Begins legs and ends them; the one place where load is given back."""

    def __init__(
        self,
        ids: LegIds,
        releases: Releases,
        placing: Placing,
        in_flight: Counter[str],
        unheard: Unheard,
        ledger: Ledger,
    ) -> None:
        """`in_flight`: legs under way per instance, which is kept up here."""
        self.flights: dict[str, Flight] = {}
        """By the id of the leg."""
        self._ids = ids
        self._releases = releases
        self._placing = placing
        self._in_flight = in_flight
        self._unheard = unheard
        self._ledger = ledger
        self._orphans: dict[str, list[Orphan]] = {}
        self._aborted: dict[str, list[Orphan]] = {}
        """Legs that had not read their handle, by engine, until it is sure that it knows."""

    def begin(
        self, flight: Flight, stage: Stage, at: str, sampling: Params | None, *, now: float
    ) -> Send:
        """Send what a flight asks for to an engine, as the leg `stage`."""
        flight.stage, flight.at = stage, at
        before, flight.leg = flight.leg, self._ids.new(stage.name[0].lower(), *flight.key)
        if stage is Stage.PREFILL:
            self._ledger.begun(flight.leg, at)
        elif stage is Stage.DECODE:
            flight.source = before
            self._ledger.handed(before, flight.leg, at)
        flight.leg_started, flight.begun = now, False
        self.flights[flight.leg] = flight
        self._in_flight[at] += 1
        request = msgspec.structs.replace(
            flight.asked,
            request_id=flight.leg,
            sampling_params=sampling,
            client_index=0,  # the engine knows our one pair of sockets only
            data_parallel_rank=None,  # an instance is one engine core
            external_req_id=None,
        )
        return Send(at, wire.ADD, wire.encode(request), flight.frames)

    def bind(self, flight: Flight, decode: str) -> None:
        """Count a user's request with the decode engine that it is bound for; empty: with none."""
        if flight.api != PROBE and flight.bound != decode:
            self._placing.unbind(flight.bound)
            self._placing.bind(decode)
            flight.bound = decode

    def leave(self, flight: Flight) -> None:
        """The present leg is over."""
        if self.flights.pop(flight.leg, None) is not None:
            self._in_flight[flight.at] -= 1

    def drop(
        self, flight: Flight, *, now: float, lost: str = "", over: bool = False
    ) -> list[Action]:
        """Abort the present leg, unless it is `over`, and see to its handle. `lost`: an instance that
        nothing can be said to."""
        if flight.stage in (Stage.NEW, Stage.HELD):
            return []
        self.leave(flight)
        self.bind(flight, "")
        if over:
            return []
        if flight.stage is Stage.PREFILL:
            if flight.at == lost:
                self._unheard.add(flight.leg, lost)
                return []
            self._releases.abandon(flight.leg, flight.link, now=now)
        if flight.at == lost:
            handle = flight.handle if flight.unread else wire.NIL
            self._orphans.setdefault(lost, []).append(_orphan(flight, handle))
            return []
        abort = Send(flight.at, wire.ABORT, wire.encode([flight.leg]))
        if not flight.unread:
            return [abort]
        self._aborted.setdefault(flight.at, []).append(_orphan(flight, flight.handle))
        return [abort, *self._releases.nudge(flight.at, now=now)]

    def stepped(self, name: str) -> None:
        """An engine has taken the step that it was nudged for: it has given back what it was told to."""
        for orphan in self._aborted.pop(name, ()):
            self._ledger.over(orphan.source)

    def lost(self, name: str) -> None:
        """An engine can't be reached: it may not have heard what it was told."""
        self._orphans.setdefault(name, []).extend(self._aborted.pop(name, ()))
        for leg in self._releases.unsure(name):
            self._unheard.add(leg, name)

    def back(self, name: str, *, now: float) -> list[Action]:
        """An engine can be reached again: stop what it still does for requests that went elsewhere.

        An unread handle is given back as well: the leg may never have reached the engine, which then
        does not know what to give back. Two releases of one handle harm nobody. Where another engine has
        given it back meanwhile, the leg may have reached this one late, and have read what prefill had
        written since: that must not lie in its prefix cache.
        """
        orphans = self._orphans.pop(name, [])
        if not orphans:
            return []
        legs = [orphan.leg for orphan in orphans]
        actions: list[Action] = [Send(name, wire.ABORT, wire.encode(legs))]
        for orphan in orphans:
            if orphan.handle != wire.NIL:
                link = (orphan.link[0], name)
                actions += self._releases.release(link, orphan.handle, leg=orphan.source, now=now)
        if any(orphan.stale and orphan.users for orphan in orphans):
            actions.append(Tainted(name))
        return actions

    def buried(self, name: str, *, now: float) -> list[Action]:
        """An engine is given up: release what it was to read, through another one. Should it be back all
        the same, it is still to stop."""
        actions: list[Action] = []
        orphans = self._orphans.pop(name, [])
        self._orphans[name] = [
            replace(orphan, handle=wire.NIL, stale=orphan.stale or orphan.handle != wire.NIL)
            for orphan in orphans
        ]
        for orphan in orphans:
            if orphan.handle != wire.NIL:
                actions += self._releases.release(
                    orphan.link, orphan.handle, leg=orphan.source, now=now, lost=name
                )
        return actions

    def renewed(self, name: str) -> None:
        """Another engine core has taken the place: it knows of nothing."""
        self._orphans.pop(name, None)

    def waiting_since(self) -> dict[str, float]:
        """By instance: when the oldest of the legs began that are under way there."""
        oldest: dict[str, float] = {}
        for flight in self.flights.values():
            oldest[flight.at] = min(oldest.get(flight.at, flight.leg_started), flight.leg_started)
        return oldest


def _orphan(flight: Flight, handle: msgspec.Raw) -> Orphan:
    return Orphan(flight.leg, flight.link, handle, flight.source, users=flight.api != PROBE)
