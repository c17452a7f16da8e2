"""A request's way through the cluster: events in, actions out; no socket, no clock.

    ADD ─▶ prefill leg ─▶ handle ─▶ decode leg ─▶ outputs under the front end's id ─▶ finished

Three kinds of request take one leg only, on one engine, without a transfer:

- `max_tokens` 1: prefill's token is the whole answer, so prefill answers it.
- prompt log-probabilities: they exist only where the prompt is computed in the same request that
  answers, so decode computes both.
- pooling requests, for the same reason.

So does a request whose client wants it (mode.py), on an engine of either role.

Legs have ids of our own (flight.LegIds): unique for all time, whatever a client sends. The front end's
id is never an engine's key.

The **handle** that prefill's output carries stands for the prompt's blocks. It is given to exactly one
decode leg. That leg reads it, or, aborted before it has, gives it back itself, given a step to do it
in. Where there is no such leg (the request was aborted before, the decode engine is gone) the handle
is released through another one's, see release.py.

What becomes of a request whose leg fails, or that can't be placed, is in flights.py; what the ends of prefill
legs bring in handing.py, the first and last outputs of answers in answers.py, and outputs that no request
waits for in strays.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vdisagg.control import mode, wire
from vdisagg.control.actions import Action, Miss, Pair, Reply
from vdisagg.control.answers import Answers
from vdisagg.control.flight import PROBE, Flight, LegIds, Stage
from vdisagg.control.flights import Counts, Flights
from vdisagg.control.handing import Handing
from vdisagg.control.handover import Handover, without_transfer
from vdisagg.control.ledger import Ledger, NoLedger, OpenLeg
from vdisagg.control.legs import LegBook
from vdisagg.control.placing import Placing, Way, Ways
from vdisagg.control.recent import Recent
from vdisagg.control.release import Releases
from vdisagg.control.routing import Policy
from vdisagg.control.strays import Strays
from vdisagg.control.unheard import Unheard

MAX_ID: Final = 1024
"""Characters of a front end's request id; a client's X-Request-Id is part of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """See plan.model.Timeouts and Failover."""

    request_s: float
    handover_s: float = 30.0
    lease_s: float = 30.0
    decode_alone: bool = True


@dataclass
class Dispatch:
    """All flights. `ways` tells where they may go, at the time of asking."""

    handover: Handover
    policy: Policy
    ways: Ways
    first_sequence: int
    limits: Limits
    counts: Counts = field(default_factory=Counts)
    in_flight: Counter[str] = field(default_factory=Counter)
    """Legs under way per instance."""
    recent: Recent = field(default_factory=Recent)
    """The last requests of users that have finished."""
    ledger: Ledger = field(default_factory=NoLedger)
    """Told of every handle, for a controller after us."""

    def __post_init__(self) -> None:
        self._ids = LegIds(self.first_sequence)
        self._releases = Releases(self.ways.routable, self._ids, self.ledger)
        self._placing = Placing(
            self.ways,
            self.policy,
            self.in_flight,
            lease_s=self.limits.lease_s,
            decode_alone=self.limits.decode_alone,
        )
        self._unheard = Unheard(self.handover, self._releases, self.ledger)
        self._legs = LegBook(
            self._ids,
            self._releases,
            self._placing,
            self.in_flight,
            self._unheard,
            self.ledger,
        )
        self._flights = Flights(
            self.handover,
            self.ways,
            self._placing,
            self._legs,
            self.counts,
            request_s=self.limits.request_s,
        )
        self._handing = Handing(
            self.handover,
            self._flights,
            self._legs,
            self._placing,
            self.ways,
            self._releases,
            self._unheard,
            self.ledger,
            self.counts,
        )
        self._answers = Answers(
            self._flights,
            self._legs,
            self._placing,
            self.ways,
            self.ledger,
            self.counts,
            self.recent,
            lease_s=self.limits.lease_s,
        )
        self._strays = Strays(self._ids, self._releases, self._legs, self._unheard)

    # -- what the front end sends -------------------------------------------------------------

    def add(
        self, api: int, request: wire.AddRequest, frames: Sequence[bytes], *, now: float
    ) -> list[Action]:
        """A request from API server `api`. `frames` are its tensors."""
        self.counts.received += 1
        key = (api, request.request_id)
        refusal = self._refusal(request)
        if key in self._flights.by_key:  # can't be told apart in the front end: both end
            ended = self.abort(api, [request.request_id], now=now)
            return [*ended, *self._flights.refused(key, "its id is in use")]
        if refusal:
            return self._flights.refused(key, refusal)
        flight = self._flight(key, request, frames, now=now)
        self.counts.colocated += flight.colocated
        return self._flights.enter(flight, now=now)

    def refuse(self, api: int, front_id: str, reason: str) -> list[Action]:
        """A request that can't be read: it ends in an error at once."""
        self.counts.received += 1
        return self._flights.refused((api, front_id), reason)

    def adopt(
        self,
        api: int,
        request: wire.AddRequest,
        frames: Sequence[bytes],
        emitted: Sequence[int],
        *,
        begun: bool,
        now: float,
    ) -> list[Action]:
        """A request that an earlier controller had in hand, whose client has the tokens `emitted`.

        `begun`: whether the client has had any output, be it without tokens.
        """
        self.counts.received += 1
        key = (api, request.request_id)
        if refusal := self._refusal(request):  # it had not been answered yet
            return self._flights.refused(key, refusal)
        flight = self._flight(key, request, frames, now=now)
        self.counts.colocated += flight.colocated
        flight.timed = False
        flight.emitted += emitted
        flight.sent = begun
        if not begun:
            return self._flights.enter(flight, now=now)
        self._flights.by_key[flight.key] = flight
        reason = "the controller that served it has ended"
        return self._flights.again(flight, reason, now=now) or self._flights.give_out(
            flight, reason
        )

    def inherit(
        self, legs: Iterable[OpenLeg], samples: Mapping[str, bytes], alive: Collection[str]
    ) -> None:
        """Prefill legs that an earlier controller has left, and a handle of each prefill engine. `alive`: the
        engines that it has left; each will be back, or lost."""
        self._unheard.inherit(legs, samples, alive)

    def probe(
        self,
        link: Pair,
        request: wire.AddRequest,
        *,
        now: float,
        proof: wire.AddRequest | None = None,
    ) -> list[Action]:
        """Send a dummy request the whole way over `link`; a Beat or a Miss will come of it.

        `proof` is the same request for the decode engine to compute alone, to compare with.
        """
        flight = self._flight((PROBE, request.request_id), request, (), now=now)
        flight.proof = proof
        self._flights.by_key[flight.key] = flight
        return [self._flights.take(flight, Way(Stage.PREFILL, link[0], *link), now=now)]

    def abort(self, api: int, ids: Iterable[str], *, now: float) -> list[Action]:
        """The front end has given these requests up; ids that have ended are ignored."""
        actions: list[Action] = []
        for front_id in ids:
            flight = self._flights.by_key.get((api, front_id))
            if flight is not None:
                self.counts.aborted += 1
                actions += self._flights.give_up(flight, now=now)
        return actions + self._flights.admit(now=now)

    def front_lost(self, *, now: float) -> list[Action]:
        """The front end is gone, and all its requests with it."""
        users = [flight for flight in self._flights.by_key.values() if flight.api != PROBE]
        self.counts.aborted += len(users)
        return [action for flight in users for action in self._flights.give_up(flight, now=now)]

    # -- what the engines send ----------------------------------------------------------------

    def outputs(
        self, instance: str, message: wire.Outputs, frames: Sequence[bytes], *, now: float
    ) -> list[Action]:
        """One engine's step. `frames` are the tensors behind the message."""
        actions: list[Action] = []
        replies: dict[int, list[wire.Output]] = {}
        legs = self._legs.flights
        for output in message.outputs:  # thousands a second go through here
            flight = legs.get(output.request_id)
            if flight is None:
                actions += self._strays.take(instance, output, now=now)
                continue
            if flight.stage is Stage.PREFILL:
                actions += self._handing.take(flight, output, now=now)
                continue
            if flight.proof is not None and flight.stage is Stage.WHOLE:
                flight.alone_top += wire.top_logprobs(output.new_logprobs, frames)
            if not flight.begun or output.finish_reason is not None:
                answered, pass_on = self._answers.take(flight, output, now=now)
                actions += answered
                if not pass_on:
                    continue
            # Else one of the many in between, with nothing but tokens to pass on.
            flight.emitted += output.new_token_ids
            if flight.api == PROBE:
                flight.leg_started = now  # it comes on: see `probes`
                continue
            flight.sent = True
            if output.new_token_ids or output.finish_reason is not None:
                output.request_id = flight.front_id
                self.counts.output_tokens += len(output.new_token_ids)
                if flight.api in replies:
                    replies[flight.api].append(output)
                else:
                    replies[flight.api] = [output]
        for api, outputs in replies.items():
            actions.append(Reply(api, outputs, message.timestamp, frames, message.weight_version))
        return actions + self._flights.admit(now=now) if self._flights.held else actions

    def instance_lost(
        self, name: str, reason: str, *, now: float, may_return: bool = False
    ) -> list[Action]:
        """An instance is gone: what runs on it, or still needs it, goes elsewhere at once.

        `may_return`: only its connection is gone, and the engine may live. Call instance_back then,
        or this again.
        """
        self._releases.instance_lost(name)
        self._legs.lost(name)
        self._unheard.lost(name)
        avoid = self._placing.all_with(name)
        actions: list[Action] = []
        for flight in list(self._flights.by_key.values()):
            unread = flight.unread and flight.prefill == name
            probe = flight.api == PROBE and name in flight.link
            if flight.at == name or unread or probe:
                what = f"{name} is gone: {reason}"
                actions += self._flights.fail(flight, what, now=now, lost=name, avoid=avoid)
        if not may_return:
            actions += self._legs.buried(name, now=now)
            actions += self._unheard.buried(name, now=now)
        return actions + self._flights.admit(now=now)

    def instance_renewed(self, name: str) -> None:
        """Another engine core is in the place of one that was lost: nothing is left of that one."""
        self._releases.renewed(name)
        self._legs.renewed(name)
        self._unheard.renewed(name)
        self.ledger.gone(name)

    def instance_back(self, name: str, *, now: float) -> list[Action]:
        """The same engine is connected again: what it still does for requests that went elsewhere is
        stopped, and it takes a step in case it owes its peers a release."""
        return [
            *self._legs.back(name, now=now),
            *self._unheard.back(name),
            *self.nudge(name, now=now),
            *self._flights.admit(now=now),
        ]

    def link_lost(self, pair: Pair, reason: str, *, now: float) -> list[Action]:
        """A link is not to be used any more: what still waits for its transfer goes elsewhere, rather
        to another decode engine: its end may be what is wrong with the link."""
        links = self.ways.routable()
        same = {link for link in links if link[1] == pair[1]}
        avoid = {pair, *same} if len(same) < len(links) else {pair}
        actions: list[Action] = []
        for flight in list(self._flights.by_key.values()):
            if flight.unread and flight.link == pair and flight.api != PROBE:
                actions += self._flights.fail(flight, reason, now=now, avoid=avoid)
        return actions

    def links_changed(self, *, now: float) -> list[Action]:
        """There may be a way for what is held."""
        return self._flights.admit(now=now)

    # -- time ---------------------------------------------------------------------------------

    def tick(self, *, now: float) -> list[Action]:
        """Ends what has waited too long. Call a few times a second."""
        actions = [
            *self._releases.tick(now=now),
            *self._unheard.tick(now=now),
            *self._flights.admit(now=now),
        ]
        for flight in list(self._flights.by_key.values()):
            if flight.api == PROBE or flight.begun or flight.key not in self._flights.by_key:
                continue
            if flight.stage is Stage.HELD:
                actions += self._flights.held_too_long(flight, now=now)
                continue
            limit = self.limits.request_s
            hung = flight.unread and not self._placing.full(flight.decode)
            if hung:
                limit = min(limit, self.limits.handover_s)
            if now - flight.leg_started <= limit:
                continue
            leg = flight.stage.name.lower()
            reason = f"no output of its {leg} leg on {flight.at} within {limit:g} s"
            if hung:  # most likely prefill's fault: a decode engine that is at work says so
                actions.append(Miss(flight.link, False, reason))
                avoid = self._placing.all_with(flight.prefill)
                actions += self._flights.fail(flight, reason, now=now, avoid=avoid)
            else:
                actions += self._legs.drop(flight, now=now)
                actions += self._flights.give_out(flight, reason)
        return actions

    def paused(self, by_s: float, *, now: float) -> None:
        """We were stopped for so long: nobody else has kept anybody waiting, and engines have dropped
        connections that they will make again."""
        self._flights.paused(by_s, now=now)

    # -- probes, and what others may ask ------------------------------------------------------

    def probes(self) -> dict[Pair, tuple[str, float]]:
        """Probes in flight: the instance that each is at, and since when it has made no progress."""
        mine = (flight for flight in self._flights.by_key.values() if flight.api == PROBE)
        return {flight.link: (flight.at, flight.leg_started) for flight in mine}

    def end_probe(self, link: Pair, *, now: float) -> list[Action]:
        """A probe has waited long enough: it is a Miss."""
        for flight in list(self._flights.by_key.values()):
            if flight.api == PROBE and flight.link == link:
                waited = now - flight.leg_started
                leg = flight.stage.name.lower()
                reason = f"no more output of its {leg} leg on {flight.at} for {waited:.1f} s"
                return self._flights.fail(flight, reason, now=now)
        return []

    def waiting_since(self) -> dict[str, float]:
        """By instance: when the oldest of the legs began that are under way there."""
        return self._legs.waiting_since()

    def nudge(self, instance: str, *, now: float) -> list[Action]:
        """Make an idle engine step once, so that it reports to its peers, and to us."""
        return self._releases.nudge(instance, now=now)

    @property
    def users_in_flight(self) -> int:
        """Requests of users that have not ended."""
        return sum(flight.api != PROBE for flight in self._flights.by_key.values())

    @property
    def handles_held(self) -> int:
        """Handles that have been given to a decode leg and not been read, as far as we know."""
        return sum(flight.unread for flight in self._flights.by_key.values())

    # -- where a request goes -----------------------------------------------------------------

    def _refusal(self, request: wire.AddRequest) -> str:
        """Why a request can't be served at all; empty when it can."""
        if len(request.request_id) > MAX_ID:
            return f"its id is longer than {MAX_ID} characters"
        if request.resumable:
            return "streaming input is not served over prefill and decode instances"
        return mode.fault(request.sampling_params)

    @staticmethod
    def _flight(
        key: tuple[int, str], request: wire.AddRequest, frames: Sequence[bytes], *, now: float
    ) -> Flight:
        sampling = request.sampling_params
        colocated = mode.is_colocated(sampling)
        if sampling is not None:
            sampling = mode.without_mode(without_transfer(sampling))
        return Flight(*key, request, frames, sampling, started=now, colocated=colocated)
