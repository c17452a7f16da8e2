"""A request's way through the cluster: events in, actions out; no socket, no clock.

    ADD ─▶ prefill leg ─▶ handle ─▶ decode leg ─▶ outputs under the front end's id ─▶ finished

Three kinds of request take one leg only, on one engine, without a transfer:

- `max_tokens` 1: prefill's token is the whole answer, so prefill answers it.
- prompt log-probabilities: they exist only where the prompt is computed in the same request that
  answers, so decode computes both.
- pooling requests, for the same reason.

Legs have ids of our own, `<leg>:<sequence>:<API server>:<front end's id>`: unique for all time,
whatever a client sends, and complete enough to route an output by. The front end's id is never an
engine's key.

**The handle.** Prefill keeps a finished leg's blocks until decode has read them. It is given to
exactly one decode leg; where that never comes (abort, death, deadline), it is released through a
decode engine, by an ADD with `abort_immediately`. An engine without work does not tell its peer, so
every release, and every abort of a decode leg that has not answered yet, is followed by a nudge: a
dummy request of one token.

An abort may cross prefill's last output on the way. The leg's id therefore stays on a list of
abandoned legs until the lease would have ended; a handle that still arrives is released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.handover import Handover, Params, with_transfer, without_transfer
from vdisagg.control.routing import Policy

LEASE_S: Final = 60.0
"""Longer than prefill keeps a handle (30 s by default): an abandoned leg is forgotten after it."""

MAX_ID: Final = 1024
"""Characters of a front end's request id; a client's X-Request-Id is part of it."""

PROBE: Final = -1
"""In the place of an API server: our own requests."""

Pair = tuple[str, str]


class Stage(Enum):
    """Which leg of a flight is under way."""

    PREFILL = auto()
    DECODE = auto()
    WHOLE = auto()


@dataclass(slots=True)
class Flight:
    """One request between its ADD and its end."""

    api: int
    front_id: str
    request: wire.AddRequest
    frames: Sequence[bytes]
    sampling: Params | None
    prefill: str
    decode: str
    stage: Stage
    at: str
    """The instance that the present leg runs on."""
    leg: str
    started: float
    leg_started: float
    compare: bool
    """Whether decode's first token has to equal prefill's."""
    token: int | None = None
    prefill_stats: msgspec.Raw = field(default_factory=msgspec.Raw)
    matched: bool | None = None
    """Whether it did; None where that can't be told."""
    begun: bool = False
    """Whether the present leg has produced output."""

    @property
    def key(self) -> tuple[int, str]:
        """Under which name the front end knows it."""
        return self.api, self.front_id


@dataclass(frozen=True, slots=True)
class Send:
    """A message for an engine."""

    instance: str
    kind: bytes
    payload: bytes
    frames: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """Outputs for one API server of the front end."""

    api: int
    outputs: list[wire.Output]
    timestamp: float
    frames: Sequence[bytes] = ()
    weight_version: str | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """A request's KV has arrived over a link. `matched` as in Link.succeeded."""

    link: Pair
    latency_s: float
    probe: bool
    matched: bool | None


@dataclass(frozen=True, slots=True)
class Miss:
    """A transfer, or a probe, failed on a link."""

    link: Pair
    probe: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person would want to know."""

    subject: str
    what: str


Action = Send | Reply | Beat | Miss | Note


@dataclass(slots=True)
class Counts:
    """Users' requests since the start; probes and nudges are not among them."""

    received: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Abandoned:
    """A prefill leg whose request is gone, but whose handle may still arrive."""

    prefill: str
    decode: str
    expires: float


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
        self._sequence = self.first_sequence
        self._legs: dict[str, Flight] = {}
        self._flights: dict[tuple[int, str], Flight] = {}
        self._abandoned: dict[str, _Abandoned] = {}
        self._nudges: dict[str, str] = {}
        self._nudge_again: set[str] = set()

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
            self.counts.failed += 1
            return [*actions, *self._error(key, reason)]
        return actions + self._start(key, request, frames, pair, now=now)

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
        for output in message.outputs:
            flight = self._legs.get(output.request_id)
            if flight is None:
                actions += self._stray(instance, output, now=now)
            elif flight.stage is Stage.PREFILL:
                actions += self._prefilled(flight, output, now=now)
            else:
                actions += self._answered(flight, output, now=now)
                if flight.api != PROBE:
                    output.request_id = flight.front_id
                    replies.setdefault(flight.api, []).append(output)
        for api, outputs in replies.items():
            actions.append(Reply(api, outputs, message.timestamp, frames, message.weight_version))
        return actions

    def instance_lost(self, name: str, reason: str, *, now: float) -> list[Action]:
        """An instance is gone: what runs on it, or still needs it, ends in an error at once."""
        self._nudges.pop(name, None)
        self._nudge_again.discard(name)
        self._abandoned = {k: v for k, v in self._abandoned.items() if v.prefill != name}
        actions: list[Action] = []
        for flight in list(self._flights.values()):
            unread = flight.stage is Stage.DECODE and not flight.begun and flight.prefill == name
            probe = flight.api == PROBE and name in (flight.prefill, flight.decode)
            if flight.at == name or unread or probe:
                actions += self._fail(flight, f"{name} is gone: {reason}", now=now, lost=name)
        return actions

    def tick(self, *, now: float, probe_limit_s: Mapping[Pair, float]) -> list[Action]:
        """Ends what has waited too long for a first output. Call about once a second."""
        self._abandoned = {k: v for k, v in self._abandoned.items() if v.expires > now}
        actions: list[Action] = []
        for flight in list(self._flights.values()):
            if flight.api == PROBE:
                limit = probe_limit_s.get((flight.prefill, flight.decode), 0.0)
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
        if instance in self._nudges:
            self._nudge_again.add(instance)
            return []
        leg = self._nudges[instance] = self._leg_id("n", PROBE, instance)
        return [Send(instance, wire.ADD, wire.encode(_dummy(leg, now=now)))]

    @property
    def users_in_flight(self) -> int:
        """Requests of users that have not ended."""
        return sum(flight.api != PROBE for flight in self._flights.values())

    @property
    def handles_held(self) -> int:
        """Handles that have been given to a decode leg and not been read, as far as we know."""
        return sum(f.stage is Stage.DECODE and not f.begun for f in self._flights.values())

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
        stage, at = _way(sampling, pair)
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
            compare=_deterministic(sampling),
        )
        self._flights[key] = flight
        if stage is Stage.PREFILL and sampling is not None:
            return [self._begin(flight, stage, at, self.handover.prefill(sampling), now=now)]
        return [self._begin(flight, stage, at, sampling, now=now)]

    def _begin(
        self, flight: Flight, stage: Stage, at: str, sampling: Params | None, *, now: float
    ) -> Send:
        flight.stage, flight.at = stage, at
        flight.leg = self._leg_id(stage.name[0].lower(), flight.api, flight.front_id)
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

    def _leg_id(self, leg: str, api: int, front_id: str) -> str:
        self._sequence += 1
        return f"{leg}:{self._sequence:x}:{api}:{front_id}"

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
            return self._fail(flight, reason, now=now, output=output)
        self._leave(flight)
        flight.token = output.new_token_ids[0] if output.new_token_ids else None
        flight.prefill_stats = output.prefill_stats
        return [self._begin(flight, Stage.DECODE, flight.decode, handed, now=now)]

    def _still_linked(self, flight: Flight) -> bool:
        """Whether the flight has a decode instance to go to; another one than planned if need be."""
        links = self.links()
        if flight.api == PROBE or (flight.prefill, flight.decode) in links:
            return True
        others = [link for link in links if link[0] == flight.prefill]
        pair = self.policy.choose(others, self.in_flight)
        if pair is not None:
            flight.decode = pair[1]
        return pair is not None

    def _answered(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        actions: list[Action] = []
        link = (flight.prefill, flight.decode)
        probe = flight.api == PROBE
        failed = output.finish_reason in (wire.ERROR, wire.ABORTED)
        if flight.stage is Stage.DECODE and not flight.begun and not failed:
            # Decode counts transferred KV as cached; what was cached is prefill's to say.
            output.prefill_stats = flight.prefill_stats
            if flight.compare and flight.token is not None and output.new_token_ids:
                flight.matched = flight.token == output.new_token_ids[0]
            if not probe:
                actions.append(Beat(link, now - flight.started, probe, flight.matched))
        flight.begun = True
        output.kv_transfer_params = output.ec_transfer_params = wire.NIL
        if not probe:
            self.counts.output_tokens += len(output.new_token_ids)
        if output.finish_reason is None:
            return actions
        self._end(flight)
        if failed:
            output.finish_reason = wire.ERROR  # nobody but the front end aborts, and it knows
            what = f"{flight.at} ended the {flight.stage.name.lower()} leg with an error"
            actions.append(Note(flight.at, f"request {flight.front_id[:80]}: {what}"))
            if flight.stage is Stage.DECODE:
                actions.append(Miss(link, probe, what))
        if not probe:
            self.counts.failed += failed
            self.counts.finished += not failed
        elif not failed:  # a probe is over when nothing of it is left, and only then
            actions.append(Beat(link, now - flight.started, probe, flight.matched))
        return actions

    def _stray(self, instance: str, output: wire.Output, *, now: float) -> list[Action]:
        """An output of a leg that has no flight: a nudge, a release, or an abandoned leg."""
        if self._nudges.get(instance) == output.request_id and output.finish_reason is not None:
            del self._nudges[instance]
            if instance in self._nudge_again:
                self._nudge_again.discard(instance)
                return self.nudge(instance, now=now)
            return []
        abandoned = self._abandoned.pop(output.request_id, None)
        if abandoned is None or output.kv_transfer_params == wire.NIL:
            return []
        return self._release(abandoned.decode, output.kv_transfer_params, now=now)

    def _release(self, decode: str, handle: msgspec.Raw, *, now: float) -> list[Action]:
        """Give prefill's blocks back through a decode engine."""
        leg = self._leg_id("r", PROBE, decode)
        request = _dummy(leg, now=now)
        request.sampling_params = with_transfer(request.sampling_params or {}, handle)
        request.abort_immediately = True
        return [Send(decode, wire.ADD, wire.encode(request)), *self.nudge(decode, now=now)]

    def _give_up(self, flight: Flight, *, now: float, lost: str = "") -> list[Action]:
        """End a flight that nobody waits for: abort its leg, and see to its handle."""
        self._end(flight)
        actions: list[Action] = []
        if flight.at != lost:
            actions.append(Send(flight.at, wire.ABORT, wire.encode([flight.leg])))
            if flight.stage is Stage.PREFILL:
                self._abandoned[flight.leg] = _Abandoned(
                    flight.prefill, flight.decode, now + LEASE_S
                )
            elif flight.stage is Stage.DECODE and not flight.begun:
                actions += self.nudge(flight.at, now=now)
        return actions

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
            return [*actions, Miss((flight.prefill, flight.decode), True, reason)]
        self.counts.failed += 1
        return [*actions, *self._error(flight.key, reason, output)]

    def _error(
        self, key: tuple[int, str], reason: str, output: wire.Output | None = None
    ) -> list[Action]:
        """The front end turns this into HTTP 500, or into an error event of a stream."""
        last = wire.Output(key[1], [], finish_reason=wire.ERROR)
        if output is not None:  # multi-modal cache misses are the front end's to retry
            last.mm_cache_miss_hashes = output.mm_cache_miss_hashes
        return [Note("request", f"{key[1][:80]}: {reason}"), Reply(key[0], [last], 0.0)]


def _way(sampling: Params | None, pair: Pair) -> tuple[Stage, str]:
    """The first leg of a request, and where it runs."""
    if sampling is None or any(
        sampling.get(key) is not None for key in ("prompt_logprobs", "prompt_logprob_token_ids")
    ):
        return Stage.WHOLE, pair[1]
    if sampling.get("max_tokens", 16) == 1:
        return Stage.WHOLE, pair[0]
    return Stage.PREFILL, pair[0]


def _deterministic(sampling: Params | None) -> bool:
    """Whether both legs must sample the same first token. Prefill runs without `min_tokens`, so
    there it may sample the end of sequence that decode must not."""
    return (
        sampling is not None
        and sampling.get("temperature", 1.0) == 0
        and not sampling.get("min_tokens")
    )


DUMMY: Final = wire.AddRequest(
    request_id="",
    prompt_token_ids=wire.raw([0]),
    mm_features=wire.NIL,
    sampling_params={"temperature": 0.0, "max_tokens": 1, "ignore_eos": True},
    pooling_params=wire.NIL,
    arrival_time=0.0,
    lora_request=wire.NIL,
    cache_salt=None,
    data_parallel_rank=None,
)


def _dummy(leg: str, *, now: float) -> wire.AddRequest:
    return msgspec.structs.replace(DUMMY, request_id=leg, arrival_time=now)


def probe_request(
    request_id: str, tokens: Sequence[int], *, max_tokens: int, salt: str, now: float
) -> wire.AddRequest:
    """A dummy request that goes the whole way: longer than a block so that KV moves, and salted so
    that no prefix cache hides the transfer."""
    return replace_sampling(
        msgspec.structs.replace(
            DUMMY,
            request_id=request_id,
            prompt_token_ids=wire.raw(list(tokens)),
            cache_salt=salt,
            arrival_time=now,
        ),
        max_tokens=max_tokens,
    )


def replace_sampling(request: wire.AddRequest, **changes: object) -> wire.AddRequest:
    """The same request with other sampling parameters."""
    return msgspec.structs.replace(
        request, sampling_params={**(request.sampling_params or {}), **changes}
    )
