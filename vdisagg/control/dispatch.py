"""A request's way through the cluster: events in, actions out; no socket, no clock.

    ADD ─▶ prefill leg ─▶ handle ─▶ decode leg ─▶ outputs under the front end's id ─▶ finished

Three kinds of request take one leg only, on one engine, without a transfer:

- `max_tokens` 1: prefill's token is the whole answer, so prefill answers it.
- prompt log-probabilities: they exist only where the prompt is computed in the same request that
  answers, so decode computes both.
- pooling requests, for the same reason.

Legs have ids of our own (flight.LegIds): unique for all time, whatever a client sends. The front end's
id is never an engine's key.

The **handle** that prefill's output carries stands for the prompt's blocks. It is given to exactly one
decode leg. That leg reads it, or, aborted before it has, gives it back itself, given a step to do it
in. Where there is no such leg (the request was aborted before, the decode engine is gone) the handle
is released through another one's, see release.py.

A leg that **fails** (its engine dies or ends it, its handle does not arrive, its link goes down) does not
fail its request. With nothing sent to the client the request is begun again, once; else the rest of
its answer is computed elsewhere from the prompt and the tokens sent (continuation.py says when that is
right). What can't be placed at once, but perhaps in a moment, is held.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from vdisagg.control import canary, early, wire
from vdisagg.control.actions import Action, Beat, Miss, Note, Pair, Reply, Send
from vdisagg.control.continuation import hindrance, rest
from vdisagg.control.flight import PROBE, Flight, LegIds, Legs, Stage, deterministic, legs_of
from vdisagg.control.handover import Handover, Params, without_transfer
from vdisagg.control.legs import LegBook
from vdisagg.control.placing import Placing, Wait, Way, Ways
from vdisagg.control.release import Releases
from vdisagg.control.routing import Policy

MAX_ID: Final = 1024
"""Characters of a front end's request id; a client's X-Request-Id is part of it."""

HOPE_S: Final = 5.0
"""How long a request waits for a way that may be there in a moment: as long as a lost engine has."""

MOVES: Final = 8
"""How often one answer is continued: more engines than that do not die of chance."""


@dataclass(frozen=True, slots=True)
class Limits:
    """See plan.model.Timeouts and Failover."""

    request_s: float
    handover_s: float = 30.0
    lease_s: float = 30.0
    decode_alone: bool = True


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
    output_tokens: int = 0


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

    def __post_init__(self) -> None:
        self._ids = LegIds(self.first_sequence)
        self._releases = Releases(self.ways.routable, self._ids)
        self._placing = Placing(
            self.ways,
            self.policy,
            self.in_flight,
            lease_s=self.limits.lease_s,
            decode_alone=self.limits.decode_alone,
        )
        self._legs = LegBook(self._ids, self._releases, self._placing, self.in_flight)
        self._flights: dict[tuple[int, str], Flight] = {}
        self._held: deque[Flight] = deque()
        self._alone = False

    # -- what the front end sends -------------------------------------------------------------

    def add(
        self, api: int, request: wire.AddRequest, frames: Sequence[bytes], *, now: float
    ) -> list[Action]:
        """A request from API server `api`. `frames` are its tensors."""
        self.counts.received += 1
        key = (api, request.request_id)
        refusal = self._refusal(request)
        if key in self._flights:  # can't be told apart in the front end: both end
            ended = self.abort(api, [request.request_id], now=now)
            return [*ended, *self._refused(key, "its id is in use")]
        if refusal:
            return self._refused(key, refusal)
        return self._enter(self._flight(key, request, frames, now=now), now=now)

    def refuse(self, api: int, front_id: str, reason: str) -> list[Action]:
        """A request that can't be read: it ends in an error at once."""
        self.counts.received += 1
        return self._refused((api, front_id), reason)

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
        flight = self._flight((api, request.request_id), request, frames, now=now)
        flight.emitted += emitted
        flight.sent = begun
        if not begun:
            return self._enter(flight, now=now)
        self._flights[flight.key] = flight
        reason = "the controller that served it has ended"
        return self._again(flight, reason, now=now) or self._give_out(flight, reason)

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
        self._flights[flight.key] = flight
        return [self._take(flight, Way(Stage.PREFILL, link[0], *link), now=now)]

    def abort(self, api: int, ids: Iterable[str], *, now: float) -> list[Action]:
        """The front end has given these requests up; ids that have ended are ignored."""
        actions: list[Action] = []
        for front_id in ids:
            flight = self._flights.get((api, front_id))
            if flight is not None:
                self.counts.aborted += 1
                actions += self._give_up(flight, now=now)
        return actions + self._admit(now=now)

    def front_lost(self, *, now: float) -> list[Action]:
        """The front end is gone, and all its requests with it."""
        users = [flight for flight in self._flights.values() if flight.api != PROBE]
        self.counts.aborted += len(users)
        return [action for flight in users for action in self._give_up(flight, now=now)]

    # -- what the engines send ----------------------------------------------------------------

    def outputs(
        self, instance: str, message: wire.Outputs, frames: Sequence[bytes], *, now: float
    ) -> list[Action]:
        """One engine's step. `frames` are the tensors behind the message."""
        actions: list[Action] = []
        replies: dict[int, list[wire.Output]] = {}
        legs = self._legs.flights
        for output in message.outputs:
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
                replies.setdefault(flight.api, []).append(output)
        for api, outputs in replies.items():
            self.counts.output_tokens += sum(len(output.new_token_ids) for output in outputs)
            actions.append(Reply(api, outputs, message.timestamp, frames, message.weight_version))
        return actions + self._admit(now=now) if self._held else actions

    def instance_lost(
        self, name: str, reason: str, *, now: float, may_return: bool = False
    ) -> list[Action]:
        """An instance is gone: what runs on it, or still needs it, goes elsewhere at once.

        `may_return`: only its connection is gone, and the engine may live. Call instance_back then,
        or this again.
        """
        self._releases.instance_lost(name)
        avoid = {("", name), *(link for link in self.ways.routable() if name in link)}
        actions: list[Action] = []
        for flight in list(self._flights.values()):
            unread = flight.unread and flight.prefill == name
            probe = flight.api == PROBE and name in flight.link
            if flight.at == name or unread or probe:
                what = f"{name} is gone: {reason}"
                actions += self._fail(flight, what, now=now, lost=name, avoid=avoid)
        if not may_return:
            actions += self._legs.buried(name, now=now)
        return actions + self._admit(now=now)

    def instance_back(self, name: str, *, now: float) -> list[Action]:
        """The same engine is connected again: what it still does for requests that went elsewhere is
        stopped, and it takes a step in case it owes its peers a release."""
        return [*self._legs.back(name), *self.nudge(name, now=now), *self._admit(now=now)]

    def link_lost(self, pair: Pair, reason: str, *, now: float) -> list[Action]:
        """A link is not to be used any more: what still waits for its transfer goes elsewhere."""
        actions: list[Action] = []
        for flight in list(self._flights.values()):
            if flight.unread and flight.link == pair and flight.api != PROBE:
                actions += self._fail(flight, reason, now=now, avoid={pair})
        return actions

    def links_changed(self, *, now: float) -> list[Action]:
        """There may be a way for what is held."""
        return self._admit(now=now)

    # -- time ---------------------------------------------------------------------------------

    def tick(self, *, now: float) -> list[Action]:
        """Ends what has waited too long. Call a few times a second."""
        self._releases.tick(now=now)
        actions = self._admit(now=now)
        for flight in list(self._flights.values()):
            if flight.api == PROBE or flight.begun or flight.key not in self._flights:
                continue
            if flight.stage is Stage.HELD:
                actions += self._held_too_long(flight, now=now)
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
                avoid = {link for link in self.ways.routable() if link[0] == flight.prefill}
                actions += self._fail(flight, reason, now=now, avoid=avoid)
            else:
                actions += self._legs.drop(flight, now=now)
                actions += self._give_out(flight, reason)
        return actions

    def paused(self, by_s: float) -> None:
        """We were stopped for so long: nobody else has kept anybody waiting."""
        for flight in self._flights.values():
            flight.leg_started += by_s

    def _held_too_long(self, flight: Flight, *, now: float) -> list[Action]:
        way = self._placing.choose(legs_of(flight.asked_sampling), now=now)
        limit = HOPE_S if way is Wait.HOPE else self.limits.request_s
        if now - flight.leg_started <= limit:
            return []
        reason = way.value if isinstance(way, Wait) else "others were before it"
        return self._give_out(flight, f"{reason} for {limit:g} s")

    # -- probes, and what others may ask ------------------------------------------------------

    def probes(self) -> dict[Pair, tuple[str, float]]:
        """Probes in flight: the instance that each is at, and since when it has made no progress."""
        mine = (flight for flight in self._flights.values() if flight.api == PROBE)
        return {flight.link: (flight.at, flight.leg_started) for flight in mine}

    def end_probe(self, link: Pair, *, now: float) -> list[Action]:
        """A probe has waited long enough: it is a Miss."""
        for flight in list(self._flights.values()):
            if flight.api == PROBE and flight.link == link:
                waited = now - flight.leg_started
                leg = flight.stage.name.lower()
                reason = f"no more output of its {leg} leg on {flight.at} for {waited:.1f} s"
                return self._fail(flight, reason, now=now)
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
        return sum(flight.api != PROBE for flight in self._flights.values())

    @property
    def handles_held(self) -> int:
        """Handles that have been given to a decode leg and not been read, as far as we know."""
        return sum(flight.unread for flight in self._flights.values())

    # -- where a request goes -----------------------------------------------------------------

    def _refusal(self, request: wire.AddRequest) -> str:
        """Why a request can't be served at all; empty when it can."""
        if len(request.request_id) > MAX_ID:
            return f"its id is longer than {MAX_ID} characters"
        if request.resumable:
            return "streaming input is not served over prefill and decode instances"
        return ""

    @staticmethod
    def _flight(
        key: tuple[int, str], request: wire.AddRequest, frames: Sequence[bytes], *, now: float
    ) -> Flight:
        sampling = request.sampling_params
        if sampling is not None:
            sampling = without_transfer(sampling)
        return Flight(key[0], key[1], request, frames, sampling, started=now)

    def _enter(self, flight: Flight, *, now: float) -> list[Action]:
        """A new request: on its way, held, or without a way."""
        self._flights[flight.key] = flight
        if self._held:
            way: Way | Wait | None = Wait.CROWDED  # it stands behind the others
        else:
            way = self._placing.choose(legs_of(flight.asked_sampling), now=now)
        if way is None:
            return self._give_out(flight, Wait.HOPE.value)
        return self._depart(flight, way, now=now)

    def _again(
        self, flight: Flight, reason: str, *, avoid: Collection[Pair] = (), now: float
    ) -> list[Action]:
        """Begin a request again, or continue its answer; nothing where that can't be."""
        if flight.sent:
            if flight.moved >= MOVES or hindrance(flight.request, flight.sampling):
                return []
        elif flight.redone:
            return []
        asked = self._left(flight)
        way = self._placing.choose(legs_of(asked[1]), avoid, now=now)
        if way is None:
            return []
        flight.asked, flight.asked_sampling = asked
        if flight.sent:
            flight.moved += 1
            self.counts.continued += 1
            what = f"continued after {len(flight.emitted)} tokens"
        else:
            flight.redone += 1
            self.counts.redone += 1
            what = "begun again"
        note = Note("request", f"{_shown(flight.front_id)}: {reason}; {what}{_where(way)}")
        return [note, *self._depart(flight, way, now=now)]

    @staticmethod
    def _left(flight: Flight) -> tuple[wire.AddRequest, Params | None]:
        """What has to be asked for so that the answer is whole."""
        if flight.sampling is None or not flight.emitted:
            return flight.request, flight.sampling
        return rest(flight.request, flight.sampling, flight.emitted)

    def _depart(self, flight: Flight, way: Way | Wait, *, now: float) -> list[Action]:
        if isinstance(way, Way):
            return [*self._say_if_alone(way, flight), self._take(flight, way, now=now)]
        flight.stage, flight.at, flight.leg_started = Stage.HELD, "", now
        flight.begun = False
        self._held.append(flight)
        return []

    def _admit(self, *, now: float) -> list[Action]:
        """Send off what is held and has a way now, in order of arrival."""
        actions: list[Action] = []
        while self._held:
            flight = self._held[0]
            way = self._placing.choose(legs_of(flight.asked_sampling), now=now)
            if isinstance(way, Wait):
                break
            if way is None:
                actions += self._give_out(flight, Wait.HOPE.value)
                continue
            self._held.popleft()
            actions += self._depart(flight, way, now=now)
        return actions

    def _say_if_alone(self, way: Way, flight: Flight) -> Iterator[Note]:
        """Tell when decode engines begin, or cease, to compute prompts that prefill should."""
        if legs_of(flight.asked_sampling) is not Legs.BOTH:
            return
        self.counts.alone += not way.prefill
        alone = not self.ways.routable()
        if alone != self._alone:
            self._alone = alone
            yield Note(
                "cluster",
                "no working link is left: decode engines compute prompts themselves"
                if alone
                else "prefill engines compute prompts again",
            )

    # -- legs ---------------------------------------------------------------------------------

    def _take(self, flight: Flight, way: Way, *, now: float) -> Send:
        """Send a flight on its first leg."""
        flight.prefill, flight.decode = way.prefill, way.decode
        self._legs.bind(flight, way.decode)
        flight.compare = deterministic(flight.asked_sampling)
        flight.token, flight.told, flight.matched = None, False, None
        flight.handle = flight.prefill_stats = wire.NIL
        sampling = flight.asked_sampling
        if way.stage is Stage.PREFILL and sampling is not None:
            sampling = self.handover.prefill(sampling)
        return self._legs.begin(flight, way.stage, way.at, sampling, now=now)

    def _end(self, flight: Flight) -> None:
        self._legs.leave(flight)
        self._legs.bind(flight, "")
        if flight.stage is Stage.HELD:
            self._held.remove(flight)
        del self._flights[flight.key]

    def _prefilled(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        if output.finish_reason is None:
            return []
        sampling = flight.asked_sampling
        handed = None
        if output.finish_reason in (wire.LENGTH, wire.STOP) and sampling is not None:
            handed = self.handover.decode(sampling, output)
        if handed is None:
            reason = f"{flight.prefill} ended the prefill leg without a handle"
            avoid = {link for link in self.ways.routable() if link[0] == flight.prefill}
            return self._fail(flight, reason, now=now, output=output, avoid=avoid)
        if not self._still_linked(flight):
            reason = f"no working link from {flight.prefill} to a decode instance"
            release = self._releases.release(flight.link, output.kv_transfer_params, now=now)
            return [*release, *self._fail(flight, reason, now=now, output=output)]
        self._legs.leave(flight)
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
        if output.finish_reason in (wire.ERROR, wire.ABORTED):  # nobody but the front end aborts
            return self._ended_badly(flight, output, now=now), False
        if flight.unread:
            if self._is_late(flight, now=now):
                reason = f"the lease of its handle on {flight.prefill} ran out"
                return [
                    Miss(flight.link, flight.api == PROBE, reason),
                    *self._fail(
                        flight,
                        reason,
                        now=now,
                        output=None if output.finish_reason is None else output,
                    ),
                ], False
            # Decode counts transferred KV as cached; what was cached is prefill's to say.
            output.prefill_stats = flight.prefill_stats
            if flight.compare and flight.token is not None and output.new_token_ids:
                flight.matched = flight.token == output.new_token_ids[0]
            if flight.api != PROBE:
                latency = now - flight.started
                actions.append(Beat(flight.link, latency, False, flight.matched))
                if flight.matched is False:
                    return [*actions, *self._recompute(flight, output, now=now)], False
        if flight.sent:
            output.events = output.prefill_stats = wire.NIL  # the client has had them
        if flight.told and not flight.begun:
            del output.new_token_ids[0]
        flight.begun = True
        output.kv_transfer_params = output.ec_transfer_params = wire.NIL
        if output.finish_reason is None:
            return actions, True
        return [*actions, *self._finish(flight, output, now=now)], flight.api != PROBE

    def _is_late(self, flight: Flight, *, now: float) -> bool:
        """Whether decode may have read what prefill had given to others by then."""
        if now - flight.leg_started <= self.limits.lease_s:
            return False
        return self.ways.expired(flight.prefill) > flight.expired_before

    def _ended_badly(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        leg = flight.stage.name.lower()
        what = f"{flight.at} ended the {leg} leg with an error"
        note = Note(flight.at, f"request {_shown(flight.front_id)}: {what}")
        if flight.stage is not Stage.DECODE:
            avoid = {link for link in self.ways.routable() if flight.at in link}
            avoid |= {("", flight.at)}
            return [note, *self._fail(flight, what, now=now, output=output, avoid=avoid)]
        link = flight.link
        miss = [] if flight.api == PROBE else [Miss(link, False, what)]
        return [note, *miss, *self._fail(flight, what, now=now, output=output, avoid={link})]

    def _recompute(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """Decode's first token is not prefill's, so it may not have read what prefill wrote. It has
        the prompt computed anew by itself, out of no cache: what it has read is in its own."""
        link = flight.link
        actions = self._legs.drop(flight, now=now, over=output.finish_reason is not None)
        asked = self._left(flight)
        salted = msgspec.structs.replace(asked[0], cache_salt=f"anew-{flight.leg}")
        flight.asked, flight.asked_sampling = salted, asked[1]
        what = f"request {_shown(flight.front_id)}: decode's first token is not prefill's; computed anew"
        way = Way(Stage.WHOLE, flight.at, "", flight.decode)
        return [Note("→".join(link), what), *actions, self._take(flight, way, now=now)]

    def _finish(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """An answering leg has come to its end."""
        if flight.api != PROBE:
            self._placing.finished(flight.bound, now=now)
            self._end(flight)
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
        self._end(flight)  # a probe is over when nothing of it is left, and only then
        if flight.proof is None:
            return [Beat(flight.link, now - flight.started, True, flight.matched)]
        return [self._proved(flight, tokens)]

    @staticmethod
    def _proved(flight: Flight, alone: Sequence[int]) -> Beat:
        what = canary.verdict(flight.over_link, alone, flight.alone_top)
        if not what and flight.token is not None:
            ahead = canary.verdict([flight.token], alone[:1], flight.alone_top[:1])
            what = f"prefill's own token: {ahead}" if ahead else ""
        return Beat(flight.link, flight.latency_s, True, not what, proof=True, reason=what)

    # -- ends ---------------------------------------------------------------------------------

    def _give_up(self, flight: Flight, *, now: float) -> list[Action]:
        """End a flight that nobody waits for: abort its leg, and see to its handle."""
        actions = self._legs.drop(flight, now=now)
        self._end(flight)
        return actions

    def _fail(
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
            self._end(flight)
            return [*actions, Miss(flight.link, True, reason)]
        if output is None or output.mm_cache_miss_hashes == wire.NIL:
            again = self._again(flight, reason, avoid=avoid, now=now)
            if again:
                return [*actions, *again]
        return [*actions, *self._give_out(flight, reason, output)]

    def _give_out(
        self, flight: Flight, reason: str, output: wire.Output | None = None
    ) -> list[Action]:
        """End a flight, whose leg is over, with an error."""
        self._end(flight)
        self.counts.failed += 1
        why = hindrance(flight.request, flight.sampling) if flight.sent else ""
        return self._error(
            flight.key, f"{reason}; not to be continued: {why}" if why else reason, output
        )

    def _refused(self, key: tuple[int, str], reason: str) -> list[Action]:
        self.counts.failed += 1
        return self._error(key, reason)

    def _error(
        self, key: tuple[int, str], reason: str, output: wire.Output | None = None
    ) -> list[Action]:
        """The front end turns this into HTTP 500, or into an error event of a stream."""
        last = wire.Output(key[1], [], finish_reason=wire.ERROR)
        if output is not None:  # multi-modal cache misses are the front end's to retry
            last.mm_cache_miss_hashes = output.mm_cache_miss_hashes
        return [Note("request", f"{_shown(key[1])}: {reason}"), Reply(key[0], [last], 0.0)]

    def _stray(self, instance: str, output: wire.Output, *, now: float) -> list[Action]:
        """An output of a leg that has no flight. One of an earlier controller's is stopped."""
        if not self._ids.is_foreign(output.request_id):
            return self._releases.stray(instance, output, now=now)
        if output.finish_reason is None:
            return [Send(instance, wire.ABORT, wire.encode([output.request_id]))]
        if output.kv_transfer_params == wire.NIL:
            return []
        return self._releases.release((instance, ""), output.kv_transfer_params, now=now)


def _where(way: Way | Wait) -> str:
    if isinstance(way, Wait):
        return " as soon as there is a way"
    return f" on {way.at}" if way.stage is Stage.WHOLE else f" over {way.prefill}→{way.decode}"


def _shown(front_id: str) -> str:
    """A request's id in a line for people: a client chooses part of it."""
    return "".join(c if c.isprintable() else "?" for c in front_id[:80])
