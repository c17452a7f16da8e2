"""A request's way through the cluster: events in, actions out; no socket, no clock.

    ADD ─▶ prefill leg ─▶ handle ─▶ decode leg ─▶ outputs under the front end's id ─▶ finished

Three kinds of request take one leg only, on one engine, without a transfer:

- `max_tokens` 1: prefill's token is the whole answer, so prefill answers it.
- prompt log-probabilities: they exist only where the prompt is computed in the same request that
  answers, so decode computes both.
- pooling requests, for the same reason.

Legs have ids of our own (flight.LegIds): unique for all time, whatever a client sends, and complete
enough to route an output by. The front end's id is never an engine's key.

The **handle** that prefill's output carries stands for the prompt's blocks. It is given to exactly one
decode leg. That leg reads it, or, aborted before it has, gives it back itself, given a step to do it
in. Where there is no such leg (the request was aborted before, the decode engine is gone) the handle
is released through another one's, see release.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from vdisagg.control import early, wire
from vdisagg.control.actions import Action, Beat, Miss, Note, Pair, Reply, Send
from vdisagg.control.flight import PROBE, Flight, LegIds, Stage, deterministic, first_leg
from vdisagg.control.handover import Handover, Params, without_transfer
from vdisagg.control.release import Releases
from vdisagg.control.routing import Policy

MAX_ID: Final = 1024
"""Characters of a front end's request id; a client's X-Request-Id is part of it."""


@dataclass(slots=True)
class Counts:
    """Users' requests since the start; probes and nudges are not among them."""

    received: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    output_tokens: int = 0


@dataclass
class Dispatch:
    """All flights. `links` tells which pairs users' requests may take, at the time of asking."""

    handover: Handover
    policy: Policy
    links: Callable[[], Sequence[Pair]]
    first_sequence: int
    request_timeout_s: float
    counts: Counts = field(default_factory=Counts)
    in_flight: Counter[str] = field(default_factory=Counter)
    """Legs under way per instance."""

    def __post_init__(self) -> None:
        self._ids = LegIds(self.first_sequence)
        self._releases = Releases(self.links, self._ids)
        self._legs: dict[str, Flight] = {}
        self._flights: dict[tuple[int, str], Flight] = {}
        self._orphans: dict[str, list[Flight]] = {}

    # -- what the front end sends -------------------------------------------------------------

    def add(
        self, api: int, request: wire.AddRequest, frames: Sequence[bytes], *, now: float
    ) -> list[Action]:
        """A request from API server `api`. `frames` are its tensors."""
        self.counts.received += 1
        key = (api, request.request_id)
        actions: list[Action] = []
        refusal = self._refusal(request)
        if key in self._flights:  # can't be told apart in the front end: both end
            actions += self.abort(api, [request.request_id], now=now)
            refusal = "its id is in use"
        links = self.links()
        pair = None if refusal else self.policy.choose(links, self.in_flight)
        if pair is None:
            reason = refusal or "no working link between a prefill and a decode instance"
            return [*actions, *self._refused(key, reason)]
        return actions + self._start(key, request, frames, pair, now=now)

    def refuse(self, api: int, front_id: str, reason: str) -> list[Action]:
        """A request that can't be read: it ends in an error at once."""
        self.counts.received += 1
        return self._refused((api, front_id), reason)

    def probe(self, link: Pair, request: wire.AddRequest, *, now: float) -> list[Action]:
        """Send a dummy request the whole way over `link`; a Beat or a Miss will come of it."""
        return self._start((PROBE, request.request_id), request, (), link, now=now)

    def abort(self, api: int, ids: Iterable[str], *, now: float) -> list[Action]:
        """The front end has given these requests up; ids that have ended are ignored."""
        actions: list[Action] = []
        for front_id in ids:
            flight = self._flights.get((api, front_id))
            if flight is not None:
                self.counts.aborted += 1
                actions += self._give_up(flight, now=now)
        return actions

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
        legs = self._legs
        for output in message.outputs:
            flight = legs.get(output.request_id)
            if flight is None:
                actions += self._releases.stray(instance, output, now=now)
                continue
            if flight.stage is Stage.PREFILL:
                actions += self._prefilled(flight, output, now=now)
                continue
            if not flight.begun or output.finish_reason is not None:
                actions += self._answered(flight, output, now=now)
            # Else one of the many in between, with nothing but tokens to pass on.
            if flight.api != PROBE and (output.new_token_ids or output.finish_reason is not None):
                output.request_id = flight.front_id
                replies.setdefault(flight.api, []).append(output)
        for api, outputs in replies.items():
            self.counts.output_tokens += sum(len(output.new_token_ids) for output in outputs)
            actions.append(Reply(api, outputs, message.timestamp, frames, message.weight_version))
        return actions

    def instance_lost(
        self, name: str, reason: str, *, now: float, may_return: bool = False
    ) -> list[Action]:
        """An instance is gone: what runs on it, or still needs it, ends in an error at once.

        `may_return`: only its connection is gone, and the engine may live. Call instance_back then,
        or this again.
        """
        self._releases.instance_lost(name)
        actions: list[Action] = []
        for flight in list(self._flights.values()):
            unread = flight.unread and flight.prefill == name
            probe = flight.api == PROBE and name in flight.link
            if flight.at == name or unread or probe:
                actions += self._fail(flight, f"{name} is gone: {reason}", now=now, lost=name)
        if not may_return:
            for flight in self._orphans.pop(name, ()):
                if flight.unread:
                    handle = flight.handle
                    actions += self._releases.release(flight.link, handle, now=now, lost=name)
        return actions

    def instance_back(self, name: str, *, now: float) -> list[Action]:
        """The same engine is connected again: what it still does for requests that have failed is
        stopped, and it takes a step in case it owes its peers a release."""
        legs = [flight.leg for flight in self._orphans.pop(name, ())]
        abort = [Send(name, wire.ABORT, wire.encode(legs))] if legs else []
        return [*abort, *self.nudge(name, now=now)]

    def tick(self, *, now: float, probe_limit_s: Mapping[Pair, float]) -> list[Action]:
        """Ends what has waited too long for a first output. Call about once a second."""
        self._releases.tick(now=now)
        actions: list[Action] = []
        for flight in list(self._flights.values()):
            if flight.api == PROBE:
                limit = probe_limit_s.get(flight.link, 0.0)
                late = now - flight.started > limit
            else:
                limit = self.request_timeout_s
                late = not flight.begun and now - flight.leg_started > limit
            if late:
                leg = flight.stage.name.lower()
                reason = f"no output of its {leg} leg on {flight.at} within {limit:g} s"
                actions += self._fail(flight, reason, now=now)
        return actions

    # -- what others may ask ------------------------------------------------------------------

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

    # -- the inside ---------------------------------------------------------------------------

    def _refusal(self, request: wire.AddRequest) -> str:
        """Why a request can't be served at all; empty when it can."""
        if len(request.request_id) > MAX_ID:
            return f"its id is longer than {MAX_ID} characters"
        if request.resumable:
            return "streaming input is not served over prefill and decode instances"
        return ""

    def _start(
        self,
        key: tuple[int, str],
        request: wire.AddRequest,
        frames: Sequence[bytes],
        pair: Pair,
        *,
        now: float,
    ) -> list[Action]:
        sampling = None
        if request.sampling_params is not None:
            sampling = without_transfer(request.sampling_params)
        stage, at = first_leg(sampling, pair)
        flight = Flight(
            api=key[0],
            front_id=key[1],
            request=request,
            frames=frames,
            sampling=sampling,
            prefill=pair[0],
            decode=pair[1],
            stage=stage,
            at=at,
            leg="",
            started=now,
            leg_started=now,
            compare=deterministic(sampling),
        )
        self._flights[key] = flight
        if stage is Stage.PREFILL and sampling is not None:
            return [self._begin(flight, stage, at, self.handover.prefill(sampling), now=now)]
        return [self._begin(flight, stage, at, sampling, now=now)]

    def _begin(
        self, flight: Flight, stage: Stage, at: str, sampling: Params | None, *, now: float
    ) -> Send:
        flight.stage, flight.at = stage, at
        flight.leg = self._ids.new(stage.name[0].lower(), *flight.key)
        flight.leg_started, flight.begun = now, False
        self._legs[flight.leg] = flight
        self.in_flight[at] += 1
        request = msgspec.structs.replace(
            flight.request,
            request_id=flight.leg,
            sampling_params=sampling,
            client_index=0,  # the engine knows our one pair of sockets only
            data_parallel_rank=None,  # an instance is one engine core
            external_req_id=None,
        )
        return Send(at, wire.ADD, wire.encode(request), flight.frames)

    def _leave(self, flight: Flight) -> None:
        """The present leg is over: the one place where load is given back."""
        if self._legs.pop(flight.leg, None) is not None:
            self.in_flight[flight.at] -= 1

    def _end(self, flight: Flight) -> None:
        self._leave(flight)
        del self._flights[flight.key]

    def _prefilled(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        if output.finish_reason is None:
            return []
        handed = None
        if output.finish_reason in (wire.LENGTH, wire.STOP) and flight.sampling is not None:
            handed = self.handover.decode(flight.sampling, output)
        if handed is None:
            reason = f"{flight.prefill} ended the prefill leg without a handle"
            return self._fail(flight, reason, now=now, output=output)
        if not self._still_linked(flight):
            reason = f"no working link from {flight.prefill} to a decode instance"
            release = self._releases.release(flight.link, output.kv_transfer_params, now=now)
            return [*release, *self._fail(flight, reason, now=now, output=output)]
        self._leave(flight)
        flight.handle = output.kv_transfer_params
        flight.token = output.new_token_ids[0] if output.new_token_ids else None
        flight.prefill_stats = output.prefill_stats
        decode = self._begin(flight, Stage.DECODE, flight.decode, handed, now=now)
        return [decode, *self._tell_ahead(flight, output)]

    def _tell_ahead(self, flight: Flight, output: wire.Output) -> list[Action]:
        """Send prefill's token on at once, where that is safe."""
        token, sampling = flight.token, flight.sampling
        if flight.api == PROBE or token is None or sampling is None:
            return []
        if not early.eligible(flight.request, sampling) or early.ends_answer(token, sampling):
            return []
        flight.told = True
        self.counts.output_tokens += 1
        first = wire.Output(
            flight.front_id, [token], events=output.events, prefill_stats=output.prefill_stats
        )
        return [Reply(flight.api, [first], 0.0)]

    def _confirm(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """Decode's first token is there, and the client has prefill's: drop it, or, where they
        differ, compute the rest from what the client has."""
        output.events = output.prefill_stats = wire.NIL
        if flight.matched:
            del output.new_token_ids[0]
            return []
        self._leave(flight)
        over = output.finish_reason is not None
        abort = () if over else (Send(flight.at, wire.ABORT, wire.encode([flight.leg])),)
        output.new_token_ids, output.finish_reason = [], None
        flight.told = False
        flight.request, left = early.rest(flight.request, flight.token or 0, flight.sampling or {})
        what = f"request {_shown(flight.front_id)}: decode's first token is not prefill's; computed anew"
        again = self._begin(flight, Stage.WHOLE, flight.at, left, now=now)
        return [Note("→".join(flight.link), what), *abort, again]

    def _still_linked(self, flight: Flight) -> bool:
        """Whether the flight has a decode instance to go to; another one than planned if need be."""
        links = self.links()
        if flight.api == PROBE or flight.link in links:
            return True
        others = [link for link in links if link[0] == flight.prefill]
        pair = self.policy.choose(others, self.in_flight)
        if pair is not None:
            flight.decode = pair[1]
        return pair is not None

    def _answered(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        actions: list[Action] = []
        link, probe = flight.link, flight.api == PROBE
        failed = output.finish_reason in (wire.ERROR, wire.ABORTED)
        if flight.unread and not failed:
            # Decode counts transferred KV as cached; what was cached is prefill's to say.
            output.prefill_stats = flight.prefill_stats
            if flight.compare and flight.token is not None and output.new_token_ids:
                flight.matched = flight.token == output.new_token_ids[0]
            if not probe:
                actions.append(Beat(link, now - flight.started, False, flight.matched))
            if flight.told:
                actions += self._confirm(flight, output, now=now)
                if flight.stage is Stage.WHOLE:
                    return actions
        flight.begun = True
        output.kv_transfer_params = output.ec_transfer_params = wire.NIL
        if output.finish_reason is None:
            return actions
        self._end(flight)
        if failed:
            output.finish_reason = wire.ERROR  # nobody but the front end aborts, and it knows
            what = f"{flight.at} ended the {flight.stage.name.lower()} leg with an error"
            actions.append(Note(flight.at, f"request {_shown(flight.front_id)}: {what}"))
            if flight.stage is Stage.DECODE:
                actions.append(Miss(link, probe, what))
        if not probe:
            self.counts.failed += failed
            self.counts.finished += not failed
        elif not failed:  # a probe is over when nothing of it is left, and only then
            actions.append(Beat(link, now - flight.started, True, flight.matched))
        return actions

    def _give_up(self, flight: Flight, *, now: float, lost: str = "") -> list[Action]:
        """End a flight that nobody waits for: abort its leg, and see to its handle."""
        self._end(flight)
        if flight.stage is Stage.PREFILL:
            self._releases.abandon(flight.leg, flight.link, now=now)
        if flight.at == lost:
            self._orphans.setdefault(lost, []).append(flight)
            return []
        abort = Send(flight.at, wire.ABORT, wire.encode([flight.leg]))
        return [abort, *(self.nudge(flight.at, now=now) if flight.unread else ())]

    def _fail(
        self,
        flight: Flight,
        reason: str,
        *,
        now: float,
        lost: str = "",
        output: wire.Output | None = None,
    ) -> list[Action]:
        """End a flight with an error. `output` is the engine's own last word, if it had one."""
        actions: list[Action] = []
        if output is None:
            actions = self._give_up(flight, now=now, lost=lost)
        else:
            self._end(flight)
        if flight.api == PROBE:
            return [*actions, Miss(flight.link, True, reason)]
        self.counts.failed += 1
        return [*actions, *self._error(flight.key, reason, output)]

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


def _shown(front_id: str) -> str:
    """A request's id in a line for people: a client chooses part of it."""
    return "".join(c if c.isprintable() else "?" for c in front_id[:80])
