"""Where requests go: on their way, held, begun again, continued elsewhere, or ended. Pure.

A leg that **fails** (its engine dies or ends it, its handle does not arrive, its link goes down) does not
fail its request. With nothing sent to the client the request is begun again, once; else the rest of
its answer is computed elsewhere from the prompt and the tokens sent (continuation.py says when that is
right). What can't be placed at once, but perhaps in a moment, is held.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.actions import Action, Miss, Note, Pair, Reply, Send
from vdisagg.control.continuation import hindrance, rest
from vdisagg.control.flight import PROBE, Flight, Legs, Stage, deterministic, legs_of
from vdisagg.control.handover import Handover, Params
from vdisagg.control.held import Line
from vdisagg.control.legs import LegBook
from vdisagg.control.phases import Instants
from vdisagg.control.placing import Placing, Wait, Way, Ways

HOPE_S: Final = 5.0
"""How long a request waits for a way that may be there in a moment: as long as a lost engine has."""

REDOS: Final = 3
"""How often a request is begun again because engines or links were lost under it; an engine may refuse it
once. It may be the request that kills them."""

MOVES: Final = 8
"""How often one answer is continued: more engines than that do not die of chance."""

PARDON_S: Final = 2.0
"""After a pause of our own, what is lost for so long counts for neither: all engines may have dropped
their connections, and we hear of one after the other."""


@dataclass(slots=True)
class Counts:
    """Users' requests since the start; probes and nudges are not among them."""

    received: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    redone: int = 0
    continued: int = 0
    alone: int = 0
    colocated: int = 0
    output_tokens: int = 0


class Flights:
    """All requests that have not ended, and what becomes of each."""

    def __init__(
        self,
        handover: Handover,
        ways: Ways,
        placing: Placing,
        legs: LegBook,
        counts: Counts,
        *,
        request_s: float,
    ) -> None:
        self.by_key: dict[tuple[int, str], Flight] = {}
        self._for_link = Line(
            "no working link between a prefill and a decode instance",
            "all decode engines have as much as they can take",
        )
        self._for_engine = Line("no working instance", "all engines have as much as they can take")
        self.counts = counts
        self._handover = handover
        self._ways = ways
        self._placing = placing
        self._legs = legs
        self._request_s = request_s
        self._alone = False
        self._pardon_until = -math.inf

    @property
    def held(self) -> bool:
        """Whether any request waits for a way."""
        return bool(self._for_link.flights or self._for_engine.flights)

    def _line(self, flight: Flight) -> Line:
        return self._for_engine if flight.colocated else self._for_link

    def enter(self, flight: Flight, *, now: float) -> list[Action]:
        """A new request: on its way, held, or without a way."""
        self.by_key[flight.key] = flight
        line = self._line(flight)
        if line.flights:
            way: Way | Wait | None = Wait.CROWDED  # it stands behind the others
        else:
            way = self._placing.choose(flight.legs, now=now)
        if way is None:
            return self.give_out(flight, line.nowhere)
        return self.depart(flight, way, now=now)

    def again(
        self,
        flight: Flight,
        reason: str,
        *,
        avoid: Collection[Pair] = (),
        refused: bool = False,
        now: float,
    ) -> list[Action]:
        """Begin a request again, or continue its answer; nothing where that can't be.

        `refused`: an engine has ended it, rather than been lost.
        """
        pardoned = now < self._pardon_until
        if flight.sent:
            if hindrance(flight.request, flight.sampling) or (
                flight.moved >= MOVES and not pardoned
            ):
                return []
        elif (flight.redone >= REDOS and not pardoned) or (refused and flight.refused):
            return []
        flight.refused = flight.refused or refused
        asked = self.left(flight)
        legs = legs_of(asked[1], colocated=flight.colocated)
        way = self._placing.choose(legs, avoid, now=now)
        if way is None:
            return []
        flight.asked, flight.asked_sampling = asked
        if flight.sent:
            flight.moved += not pardoned
            self.counts.continued += 1
            what = f"continued after {len(flight.emitted)} tokens"
        else:
            flight.redone += not pardoned
            self.counts.redone += 1
            what = "begun again"
        note = Note("request", f"{shown(flight.front_id)}: {reason}; {what}{_where(way)}")
        return [note, *self.depart(flight, way, now=now)]

    def paused(self, by_s: float, *, now: float) -> None:
        """We have been stopped for so long, until now: that is no time of a leg, nor of hope; and see
        PARDON_S."""
        self._pardon_until = now + PARDON_S
        for line in (self._for_link, self._for_engine):
            line.paused(by_s)
        for flight in self.by_key.values():
            flight.leg_started += by_s

    @staticmethod
    def left(flight: Flight) -> tuple[wire.AddRequest, Params | None]:
        """What has to be asked for so that the answer is whole."""
        asked, sampling = flight.request, flight.sampling
        if sampling is not None and flight.emitted:
            asked, sampling = rest(asked, sampling, flight.emitted)
        if flight.salt:
            asked = msgspec.structs.replace(asked, cache_salt=flight.salt)
        return asked, sampling

    def depart(self, flight: Flight, way: Way | Wait, *, now: float) -> list[Action]:
        """Send a request on its way, or hold it."""
        if isinstance(way, Way):
            return [*self._say_if_alone(way, flight), self.take(flight, way, now=now)]
        line = self._line(flight)
        if way is Wait.HOPE:
            line.look(way, now=now)
        flight.stage, flight.at, flight.leg_started = Stage.HELD, "", now
        flight.begun = False
        line.flights.append(flight)
        return []

    def admit(self, *, now: float) -> list[Action]:
        """Send off what is held and has a way now, in order of arrival."""
        return [*self._admit(self._for_link, now=now), *self._admit(self._for_engine, now=now)]

    def _admit(self, line: Line, *, now: float) -> list[Action]:
        actions: list[Action] = []
        while line.flights:
            flight = line.flights[0]
            way = self._placing.choose(flight.legs, now=now)
            line.look(way, now=now)
            if isinstance(way, Wait):
                break
            if way is None:
                actions += self.give_out(flight, line.nowhere)
                continue
            line.flights.popleft()
            actions += self.depart(flight, way, now=now)
        return actions

    def _say_if_alone(self, way: Way, flight: Flight) -> Iterator[Note]:
        """Tell when decode engines begin, or cease, to compute prompts that prefill should."""
        if flight.legs is not Legs.BOTH:
            return
        self.counts.alone += not way.prefill
        alone = not self._ways.routable()
        if alone != self._alone:
            self._alone = alone
            yield Note(
                "cluster",
                "no working link is left: decode engines compute prompts themselves"
                if alone
                else "prefill engines compute prompts again",
            )

    def held_too_long(self, flight: Flight, *, now: float) -> list[Action]:
        """End a request that has been held for too long; nothing if it has not."""
        line, way = self._line(flight), self._placing.choose(flight.legs, now=now)
        since, limit = flight.leg_started, self._request_s
        if way is Wait.HOPE:  # however long it had waited for its turn before
            since, limit = max(since, line.hoping_since or since), HOPE_S
        if now - since <= limit:
            return []
        return self.give_out(flight, f"{line.why(way)} for {limit:g} s")

    def take(self, flight: Flight, way: Way, *, now: float) -> Send:
        """Send a flight on its first leg."""
        flight.prefill, flight.decode = way.prefill, way.decode
        self._legs.bind(flight, way.decode)
        if not flight.sent:
            flight.instants = Instants(now)
        flight.compare = deterministic(flight.asked_sampling)
        flight.token, flight.told, flight.matched = None, False, None
        flight.handle = flight.prefill_stats = wire.NIL
        sampling = flight.asked_sampling
        if way.stage is Stage.PREFILL and sampling is not None:
            sampling = self._handover.prefill(sampling)
        return self._legs.begin(flight, way.stage, way.at, sampling, now=now)

    def fail(
        self,
        flight: Flight,
        reason: str,
        *,
        now: float,
        lost: str = "",
        output: wire.Output | None = None,
        avoid: Collection[Pair] = (),
    ) -> list[Action]:
        """A leg has failed: its request goes elsewhere, or ends. `output`: the leg's last, if any."""
        actions = self._legs.drop(flight, now=now, lost=lost, over=output is not None)
        if flight.api == PROBE:
            self.end(flight)
            return [*actions, Miss(flight.link, True, reason)]
        if output is None or output.mm_cache_miss_hashes is None:
            refused = output is not None
            again = self.again(flight, reason, avoid=avoid, refused=refused, now=now)
            if again:
                return [*actions, *again]
        return [*actions, *self.give_out(flight, reason, output)]

    def give_out(
        self, flight: Flight, reason: str, output: wire.Output | None = None
    ) -> list[Action]:
        """End a flight, whose leg is over, with an error."""
        self.end(flight)
        self.counts.failed += 1
        why = hindrance(flight.request, flight.sampling) if flight.sent else ""
        return self._error(
            flight.key, f"{reason}; not to be continued: {why}" if why else reason, output
        )

    def refused(self, key: tuple[int, str], reason: str) -> list[Action]:
        """A request that never became a flight: the front end is told so."""
        self.counts.failed += 1
        return self._error(key, reason)

    def _error(
        self, key: tuple[int, str], reason: str, output: wire.Output | None = None
    ) -> list[Action]:
        """The front end turns this into HTTP 500, or into an error event of a stream."""
        last = wire.Output(key[1], [], finish_reason=wire.ERROR)
        if output is not None:  # multi-modal cache misses are the front end's to retry
            last.mm_cache_miss_hashes = output.mm_cache_miss_hashes
        return [Note("request", f"{shown(key[1])}: {reason}"), Reply(key[0], [last], 0.0)]

    def give_up(self, flight: Flight, *, now: float) -> list[Action]:
        """End a flight that nobody waits for: abort its leg, and see to its handle."""
        actions = self._legs.drop(flight, now=now)
        self.end(flight)
        return actions

    def end(self, flight: Flight) -> None:
        """Forget a flight: its load is given back, and nothing is said to anybody."""
        self._legs.leave(flight)
        self._legs.bind(flight, "")
        if flight.stage is Stage.HELD:
            self._line(flight).flights.remove(flight)
        del self.by_key[flight.key]


def _where(way: Way | Wait) -> str:
    if isinstance(way, Wait):
        return " as soon as there is a way"
    return f" on {way.at}" if way.stage is Stage.WHOLE else f" over {way.prefill}→{way.decode}"


def shown(front_id: str) -> str:
    """A request's id in a line for people: a client chooses part of it."""
    return "".join(c if c.isprintable() else "?" for c in front_id[:80])
