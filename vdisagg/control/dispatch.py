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

What becomes of a request whose leg fails, or that can't be placed, is in flights.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vdisagg.control import canary, early, mode, wire
from vdisagg.control.actions import Action, Beat, Miss, Note, Pair, Reply, Send, Tainted
from vdisagg.control.flight import PROBE, Flight, LegIds, Stage
from vdisagg.control.flights import Counts, Flights, shown
from vdisagg.control.handover import Handover, without_transfer
from vdisagg.control.ledger import Ledger, NoLedger, OpenLeg
from vdisagg.control.legs import LegBook
from vdisagg.control.placing import Placing, Way, Ways
from vdisagg.control.recent import Recent
from vdisagg.control.release import Releases
from vdisagg.control.routing import Policy
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
                actions += self._stray(instance, output, now=now)
                continue
            if flight.stage is Stage.PREFILL:
                actions += self._prefilled(flight, output, now=now)
                continue
            if flight.proof is not None and flight.stage is Stage.WHOLE:
                flight.alone_top += wire.top_logprobs(output.new_logprobs, frames)
            if not flight.begun or output.finish_reason is not None:
                answered, pass_on = self._answered(flight, output, now=now)
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
        avoid = self._all_with(name)
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
                avoid = self._all_with(flight.prefill)
                actions += self._flights.fail(flight, reason, now=now, avoid=avoid)
            else:
                actions += self._legs.drop(flight, now=now)
                actions += self._flights.give_out(flight, reason)
        return actions

    def paused(self, by_s: float, *, now: float) -> None:
        """We were stopped for so long: nobody else has kept anybody waiting, and engines have dropped
        connections that they will make again."""
        self._flights.pardon(now=now)
        for flight in self._flights.by_key.values():
            flight.leg_started += by_s

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

    def _all_with(self, name: str) -> set[Pair]:
        """All ways that need an instance: its links, and what it would compute alone."""
        return {("", name), *(link for link in self.ways.routable() if name in link)}

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

    # -- legs ---------------------------------------------------------------------------------

    def _prefilled(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        if output.finish_reason is None:
            return []
        sampling = flight.asked_sampling
        handed = None
        if output.finish_reason in (wire.LENGTH, wire.STOP) and sampling is not None:
            handed = self.handover.decode(sampling, output)
        if handed is None:
            self.ledger.over(flight.leg)
            reason = f"{flight.prefill} ended the prefill leg without a handle"
            avoid = self._all_with(flight.prefill)
            return self._flights.fail(flight, reason, now=now, output=output, avoid=avoid)
        self._unheard.learn(flight.prefill, output.kv_transfer_params)
        self._releases.caught_up(flight.prefill, flight.leg)
        if not self._still_linked(flight):
            reason = f"no working link from {flight.prefill} to a decode instance"
            release = self._releases.release(
                flight.link, output.kv_transfer_params, leg=flight.leg, now=now
            )
            return [*release, *self._flights.fail(flight, reason, now=now, output=output)]
        self._legs.leave(flight)
        flight.instants.note_prefill(flight.prefill, output, now=now)
        flight.handle = output.kv_transfer_params
        flight.expired_before = self.ways.expired(flight.prefill)
        flight.token = output.new_token_ids[0] if output.new_token_ids else None
        flight.prefill_stats = output.prefill_stats
        decode = self._legs.begin(flight, Stage.DECODE, flight.decode, handed, now=now)
        return [decode, *self._tell_ahead(flight, output)]

    def _still_linked(self, flight: Flight) -> bool:
        """Whether the flight has a decode instance to go to; another one than planned if need be."""
        if flight.api == PROBE or flight.link in self.ways.routable():
            return True
        decode = self._placing.another_decode(flight.prefill)
        if decode:
            flight.decode = decode
            self._legs.bind(flight, decode)
        return bool(decode)

    def _tell_ahead(self, flight: Flight, output: wire.Output) -> list[Action]:
        """Send prefill's token on at once, where that is safe."""
        token, sampling = flight.token, flight.asked_sampling
        if flight.api == PROBE or token is None or sampling is None:
            return []
        if not early.eligible(flight.asked, sampling) or early.ends_answer(token, sampling):
            return []
        first = wire.Output(flight.front_id, [token])
        if not flight.sent:
            first.events, first.prefill_stats = output.events, output.prefill_stats
        flight.told = flight.sent = True
        flight.emitted.append(token)
        self.counts.output_tokens += 1
        return [Reply(flight.api, [first], 0.0)]

    # -- answers ------------------------------------------------------------------------------

    def _answered(
        self, flight: Flight, output: wire.Output, *, now: float
    ) -> tuple[list[Action], bool]:
        """A first or last output of an answering leg; whether it is to be passed on."""
        actions: list[Action] = []
        if flight.unread:
            self.ledger.over(flight.source)
        if output.finish_reason in (wire.ERROR, wire.ABORTED):  # nobody but the front end aborts
            return self._ended_badly(flight, output, now=now), False
        if flight.unread:
            if self._is_late(flight, now=now):
                return self._read_too_late(flight, output, now=now), False
            # Decode counts transferred KV as cached; what was cached is prefill's to say.
            output.prefill_stats = flight.prefill_stats
            if flight.compare and flight.token is not None and output.new_token_ids:
                flight.matched = flight.token == output.new_token_ids[0]
            if flight.api != PROBE:
                latency = now - flight.started
                actions.append(Beat(flight.link, latency, False, flight.matched))
                if flight.matched is False:
                    return [*actions, *self._recompute(flight, output, now=now)], False
        flight.instants.note_answer(output, now=now)
        if flight.sent:
            output.events = output.prefill_stats = wire.NIL  # the client has had them
        if flight.told and not flight.begun:
            del output.new_token_ids[0]
        flight.begun = True
        output.kv_transfer_params, output.ec_transfer_params = wire.NIL, None
        if output.finish_reason is None:
            return actions, True
        return [*actions, *self._finish(flight, output, now=now)], flight.api != PROBE

    def _is_late(self, flight: Flight, *, now: float) -> bool:
        """Whether decode may have read what prefill had given to others by then."""
        if now - flight.leg_started <= self.limits.lease_s:
            return False
        return self.ways.expired(flight.prefill) > flight.expired_before

    def _read_too_late(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """Nothing of it is believed, and nothing that lies in decode's cache of it is read again."""
        reason = f"the lease of its handle on {flight.prefill} ran out"
        tainted = Tainted(flight.decode)
        miss = Miss(flight.link, flight.api == PROBE, reason)
        over = output if output.finish_reason is not None else None
        flight.salt = f"anew-{flight.leg}"
        failed = self._flights.fail(flight, reason, now=now, output=over)
        return [tainted, *failed] if flight.api == PROBE else [tainted, miss, *failed]

    def _ended_badly(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        leg = flight.stage.name.lower()
        what = f"{flight.at} ended the {leg} leg with an error"
        note = Note(flight.at, f"request {shown(flight.front_id)}: {what}")
        if flight.stage is not Stage.DECODE:
            avoid = self._all_with(flight.at)
            return [note, *self._flights.fail(flight, what, now=now, output=output, avoid=avoid)]
        link = flight.link
        miss = [] if flight.api == PROBE else [Miss(link, False, what)]
        return [
            note,
            *miss,
            *self._flights.fail(flight, what, now=now, output=output, avoid={link}),
        ]

    def _recompute(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """Decode's first token is not prefill's, so it may not have read what prefill wrote. It has
        the prompt computed anew by itself, out of no cache: what it has read is in its own."""
        link = flight.link
        actions = self._legs.drop(flight, now=now, over=output.finish_reason is not None)
        flight.salt = f"anew-{flight.leg}"
        flight.asked, flight.asked_sampling = self._flights.left(flight)
        what = f"request {shown(flight.front_id)}: decode's first token is not prefill's; computed anew"
        way = Way(Stage.WHOLE, flight.at, "", flight.decode)
        return [Note("→".join(link), what), *actions, self._flights.take(flight, way, now=now)]

    def _finish(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """An answering leg has come to its end."""
        if flight.api != PROBE:
            self.recent.add(flight, now=now)
            self._placing.finished(flight.at, now=now)
            self._flights.end(flight)
            self.counts.finished += 1
            return []
        tokens = [*flight.emitted, *output.new_token_ids]
        if flight.proof is not None and flight.stage is Stage.DECODE:
            flight.latency_s, flight.over_link = now - flight.started, tokens
            self._legs.leave(flight)
            flight.emitted = []
            flight.asked, flight.asked_sampling = flight.proof, flight.proof.sampling_params
            alone = flight.asked_sampling
            return [self._legs.begin(flight, Stage.WHOLE, flight.decode, alone, now=now)]
        self._flights.end(flight)  # a probe is over when nothing of it is left, and only then
        if flight.proof is None:
            return [Beat(flight.link, now - flight.started, True, flight.matched)]
        beat = self._proved(flight, tokens)
        return [beat] if beat.matched else [Tainted(flight.decode), beat]

    @staticmethod
    def _proved(flight: Flight, alone: Sequence[int]) -> Beat:
        what = canary.verdict(flight.over_link, alone, flight.alone_top)
        if not what and flight.token is not None:
            ahead = canary.verdict([flight.token], alone[:1], flight.alone_top[:1])
            what = f"prefill's own token: {ahead}" if ahead else ""
        return Beat(flight.link, flight.latency_s, True, not what, proof=True, reason=what)

    # -- ends ---------------------------------------------------------------------------------

    def _stray(self, instance: str, output: wire.Output, *, now: float) -> list[Action]:
        """An output of a leg that has no flight: a nudge, say. An earlier controller's is stopped."""
        if self._releases.is_nudge(instance, output):
            again = self._releases.stepped(instance, now=now)
            if again:
                return again
            self._legs.stepped(instance)
            return self._unheard.stepped(instance, now=now)
        if self._unheard.expects(output.request_id):
            return self._unheard.heard(instance, output, now=now)
        if not self._ids.is_foreign(output.request_id):
            return self._releases.stray(instance, output, now=now)
        if output.finish_reason is None:
            return [Send(instance, wire.ABORT, wire.encode([output.request_id]))]
        if output.kv_transfer_params == wire.NIL:
            return []
        self._unheard.learn(instance, output.kv_transfer_params)
        return self._releases.release(
            (instance, ""), output.kv_transfer_params, leg=output.request_id, now=now
        )
