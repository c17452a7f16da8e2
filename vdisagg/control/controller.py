"""The controller's loop: sockets at the edges, fleet and dispatch inside, actions carried out here."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from vdisagg.cluster import admin
from vdisagg.cluster.logged import log_line
from vdisagg.control import report, wire
from vdisagg.control.actions import Action, Beat, Miss, Note, Pair, Reply, Send, Tainted
from vdisagg.control.admin_socket import AdminSocket
from vdisagg.control.admission import Admission, admitted
from vdisagg.control.dispatch import Dispatch, Limits
from vdisagg.control.dummies import alone_request, beat_size, probe_request, probe_size
from vdisagg.control.endpoint import Endpoint
from vdisagg.control.fleet import Fleet
from vdisagg.control.flood import Flood
from vdisagg.control.front import Front
from vdisagg.control.handover import HANDOVERS
from vdisagg.control.history import History
from vdisagg.control.kept import Kept
from vdisagg.control.lifecycle import SUSPECT_S, Signal
from vdisagg.control.processes import ProcessWatch
from vdisagg.control.purge import Purges
from vdisagg.control.routing import FewestInFlight
from vdisagg.control.saved import Saved
from vdisagg.control.sockets import Sockets
from vdisagg.control.takeover import Takeover, adopted
from vdisagg.control.utility import Answer, Calls
from vdisagg.errors import ProtocolError
from vdisagg.plan.model import Plan

TICK_S: Final = 0.05
"""How often links are looked at; under load there are thousands of turns a second."""

SWEEP_S: Final = 0.25
PAUSE_S: Final = 2.0
"""Between two ticks: whoever finds himself so late was stopped, and others' silence proves nothing."""

PROBE_TOKENS: Final = range(3, 250)
"""Token ids of probes: every vocabulary has them, and ids below are often special."""

LEAST_SILENCE_S: Final = 2.0
"""A connection is not given up for less: a machine that is busy may take as long to answer a ping."""


class Controller:
    """Joins endpoints and the played engine. One thread, one loop; see `run`.

    A controller that finds the journal and the saved state of one before it, of the same run of the
    cluster, goes on from there: engines and front end have noticed no more than broken connections.
    """

    def __init__(
        self, plan: Plan, directory: Path, *, rng: random.Random, since: float = 0.0
    ) -> None:
        """Binds all endpoints; raises PlanConflict. `since`: Unix time when `up` began."""
        now = time.monotonic()
        self._plan = plan
        self._rng = rng
        self._started = time.time()
        self._to_unix = self._started - now
        self._stopping = False
        self._next_tick = self._awake = now
        self._next_sweep = 0.0
        self._unsaved = False
        self._flood = Flood()
        self._history = History.open(directory, run=since)
        self._ready_payloads: dict[str, bytes] = {}
        self._processes = ProcessWatch(plan, since=since)
        self._front_state: admin.FrontState = "waiting"
        self._calls_due: list[tuple[int, bytes]] = []
        roles = {i.name: i.role for i in plan.instances}
        self.fleet = Fleet.of(roles, plan.heartbeat, now=now, rng=rng)
        self._links: Sequence[Pair] = self.fleet.routable()
        self._calls = Calls()
        self._purges = Purges()
        self._sockets = Sockets(heartbeat_s=max(plan.heartbeat.limit_s, LEAST_SILENCE_S))
        self._admission = Admission(self._sockets, admitted(plan), self._turned_away)
        self._endpoints = {i.name: Endpoint(self._sockets, i, self) for i in plan.instances}
        self._takeover = Takeover(self.fleet, self._endpoints, self._ready_payloads, self._log)
        self._front = Front(self._sockets, plan.front_end.handshake, self)
        self._admin = AdminSocket(self._sockets, directory, self._asked)
        self._kept = Kept(directory, run=since, say=lambda text: self._log("controller", text))
        self._journal = self._kept.journal
        self.dispatch = Dispatch(
            HANDOVERS[plan.connector],
            FewestInFlight(),
            self.fleet,
            first_sequence=time.time_ns() // 1000,
            limits=Limits(
                request_s=plan.timeouts.request_s,
                handover_s=plan.timeouts.handover_s,
                lease_s=plan.timeouts.lease_s,
                decode_alone=plan.failover.decode_alone,
            ),
            ledger=self._journal,
        )
        self.fleet.in_flight = self.dispatch.in_flight
        if self._kept.before is not None:
            self._go_on(self._kept.before, now=now)

    def run(self) -> None:
        """Serve until `stop`."""
        self._log("controller", f"serving cluster {self._plan.name}")
        try:
            while not self._stopping:
                readable = self._sockets.wait()
                self._notice_pause(time.monotonic())  # before what has piled up meanwhile
                self._sockets.handle(readable)
                self._tick(time.monotonic())
        finally:
            self._admin.close()
            self._sockets.close()
            self._journal.close()

    def stop(self) -> None:
        """End `run` within a turn; may be called by a signal handler."""
        self._stopping = True

    def _turned_away(self, what: str, address: str) -> None:
        self._log(what, f"turned away {address}, which is no node's address (data_ip)")

    # -- what an earlier controller has left --------------------------------------------------

    def _go_on(self, before: Saved, *, now: float) -> None:
        """Take up engines, front end and requests where the controller before us was killed."""
        self._takeover.restore(before, now=now)
        for name, instance in before.instances.items():
            if instance.tainted:
                self._purges.owe(name, now=now)
                self._tell(self.fleet.taint(name))
        left = self._journal.recalled()
        what = f"requests under way: {len(left.requests)}, handles not read: {len(left.legs)}"
        what = f"taking over from an earlier controller: {what}"
        self._log("controller", what)
        alive = [name for name, one in before.instances.items() if one.ready is not None]
        self.dispatch.inherit(left.legs, left.samples, alive)
        if before.front is None or not self._kept.had_journal:
            self._journal.reset(legs=True)
            return
        addresses = wire.Addresses(before.front.inputs, before.front.outputs)
        count = range(len(addresses.inputs))
        self._front.attach(addresses, [self._journal.received(api) for api in count])
        self._calls_due = list(left.calls)
        self._do(adopted(left.requests, self.dispatch, now=now))

    def _save(self) -> None:
        """What a controller after us needs to know, apart from the journal."""
        self._unsaved = False
        self._kept.save(self.fleet, self._ready_payloads, self._front.addresses)

    # -- what engines say (EngineEvents) ------------------------------------------------------

    def engine_hello(self, name: str) -> None:
        """See EngineEvents."""
        state = self.fleet.engines[name].life.state
        self._signal(name, Signal.LAUNCHED)
        if state in ("ready", "suspect", "draining", "dead"):
            self._lose(name, "a new engine core took its place")
        self.dispatch.instance_renewed(name)
        self._ready_payloads.pop(name, None)
        self._purges.renewed(name)
        self._signal(name, Signal.HELLO)
        self._save()

    def engine_ready(self, name: str, payload: bytes, ready: wire.Ready) -> None:
        """See EngineEvents."""
        self._ready_payloads[name] = payload
        self.fleet.engines[name].ready = ready
        self._signal(name, Signal.READY)
        self._save()

    def engine_outputs(self, name: str, message: wire.Outputs, frames: Sequence[bytes]) -> None:
        """See EngineEvents."""
        now = time.monotonic()
        if self.fleet.heard(name, now=now):
            self.engine_back(name)
        if message.scheduler_stats is not None:
            self.fleet.engines[name].note(message.scheduler_stats, now=now)
        answer = message.utility_output
        if answer is not None:
            self._utility_answered(name, answer, now)
        if message.outputs:
            self._do(self.dispatch.outputs(name, message, frames, now=now))
        if not self.dispatch.in_flight[name]:
            self._endpoints[name].rest()

    def engine_heard(self, name: str) -> None:
        """See EngineEvents."""
        if self.fleet.heard(name, now=time.monotonic()):
            self.engine_back(name)

    def engine_lost(self, name: str) -> None:
        """See EngineEvents."""
        self._suspect(name, "its connections are gone")

    def _suspect(self, name: str, reason: str) -> None:
        self._signal(name, Signal.LOST, reason)
        self._lose(name, reason, may_return=True)

    def engine_back(self, name: str) -> None:
        """See EngineEvents."""
        if self.fleet.engines[name].life.takes(Signal.BACK):
            self._signal(name, Signal.BACK)
            self._do(self.dispatch.instance_back(name, now=time.monotonic()))
            self._follow_links()

    def engine_dead(self, name: str, reason: str) -> None:
        """See EngineEvents."""
        self._endpoints[name].forget()
        self._give_up(name, reason)

    def _give_up(self, name: str, reason: str) -> None:
        self._signal(name, Signal.DIED, reason)
        self._lose(name, reason)

    # -- what the front end says (FrontEvents) ------------------------------------------------

    def front_attached(self, api_servers: int) -> None:
        """See FrontEvents."""
        self._front_state = "attached"
        self._log("front", f"attached, API servers: {api_servers}")
        self._tell_health()
        self._save()

    def front_resumed(self, api: int, last: int) -> None:
        """See FrontEvents."""
        for seq, payload, frames in self._journal.outputs_after(api, last):
            self._front.send(api, payload, frames, seq=seq)

    def front_message(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes]) -> None:
        """See FrontEvents."""
        now = time.monotonic()
        self._journal.input(api, kind, payload, frames)
        if kind == wire.ADD:
            self._add(api, payload, frames, now=now)
        elif kind == wire.ABORT:
            self._do(self.dispatch.abort(api, wire.decode_ids(payload), now=now))
        elif kind == wire.UTILITY:
            self._call(api, payload)

    def _add(self, api: int, payload: bytes, frames: Sequence[bytes], *, now: float) -> None:
        try:
            request = wire.decode_add(payload)
        except ProtocolError as exc:
            front_id = wire.decode_added_id(payload).request_id
            self._do(self.dispatch.refuse(api, front_id, str(exc)))
        else:
            self._do(self.dispatch.add(api, request, frames, now=now))

    def _call(self, api: int, payload: bytes) -> None:
        ready = (e.name for e in self.fleet.engines.values() if e.life.routable)
        sends, answers = self._calls.call(api, payload, ready)
        self._do(sends)
        self._answer(answers)

    def front_fault(self, reason: str) -> None:
        """See FrontEvents."""
        self._log("front", reason)

    def front_lost(self) -> None:
        """See FrontEvents."""
        self._front_state = "gone"
        self._log("front", "its connections are gone")
        self._front.hang_up()
        self._calls.forget()
        self._calls_due.clear()
        self._journal.reset(legs=True)
        self._do(self.dispatch.front_lost(now=time.monotonic()))
        self._save()

    # -- time ---------------------------------------------------------------------------------

    def _notice_pause(self, now: float) -> None:
        """We have been stopped: what that did is nobody else's fault."""
        pause = now - self._awake
        self._awake = now
        if pause > PAUSE_S:
            self._log("controller", f"was stopped for {pause:.1f} s")
            self.fleet.paused(pause)
            self.dispatch.paused(pause, now=now)
            self._front.paused(pause)

    def _tick(self, now: float) -> None:
        self._notice_pause(now)
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_S
        for pair, proof in self.fleet.due(now=now):
            self._probe(pair, proof, now)
        self._dial_front()
        self._front.tick(now)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        for endpoint in self._endpoints.values():
            endpoint.catch_up()
        self._look_at_processes()
        self._takeover.look_at_loading(now)
        self._listen_to_front(now)
        for pair in self.fleet.late(now=now, probes=self.dispatch.probes()):
            self._do(self.dispatch.end_probe(pair, now=now))
        for name, reason in self.fleet.silent(now=now, waiting_since=self.dispatch.waiting_since()):
            self._suspect(name, reason)
        for engine in self.fleet.engines.values():
            if engine.life.state == "suspect" and now - engine.life.since > SUSPECT_S:
                self._give_up(engine.name, engine.life.reason)
        self._tell(self.fleet.tick(now=now))
        self._follow_links()
        self._do(self.dispatch.tick(now=now))
        engines = self.fleet.engines
        self._do(self._purges.tick(now=now, ready=lambda name: engines[name].life.routable))
        self._tell_health()
        for note in self._flood.due(now=now):
            self._log(note.subject, note.what)
        self._kept.tidy()
        if self._calls_due and self.fleet.routable():
            due, self._calls_due = self._calls_due, []
            for api, payload in due:
                self._call(api, payload)
        if self._unsaved:
            self._save()

    def _listen_to_front(self, now: float) -> None:
        """One that says nothing is kept: it may live behind a hole, and can't be attached to twice."""
        silent_s = self._front.silent_s(now)
        silent = silent_s > max(self._plan.heartbeat.limit_s, LEAST_SILENCE_S)
        if silent and self._front_state == "attached":
            self._front_state = "silent"
            self._log("front", f"has said nothing for {silent_s:.1f} s; its requests wait")
        elif not silent and self._front_state == "silent":
            self._front_state = "attached"
            self._log("front", "is heard again")

    def _follow_links(self) -> None:
        """What changes when links come and go."""
        links = self.fleet.routable()
        if links is self._links:
            return
        gone = [pair for pair in self._links if pair not in links]
        self._links = links
        self._unsaved = True
        now = time.monotonic()
        for pair in gone:
            link = self.fleet.links[pair]
            if link.routable:  # a prefix cache is to be emptied; what is under way over it goes on
                continue
            because = f": {link.reason}" if link.reason else ""
            reason = f"link {'→'.join(pair)} is {link.state}{because}"
            self._do(self.dispatch.link_lost(pair, reason, now=now))
        self._do(self.dispatch.links_changed(now=now))
        self._tell_health()

    def _tell_health(self) -> None:
        works = bool(self.fleet.routable())
        self._front.health(works, "" if works else self.fleet.why_no_link())

    def _dial_front(self) -> None:
        """The front end gets its engine when there is a working link: then HTTP opens."""
        routable = self.fleet.routable()
        if self._front.dialling or not routable:
            return
        lengths = [e.ready.max_model_len for e in self.fleet.engines.values() if e.ready]
        _, decode = routable[0]
        payload = wire.decode_value(msgspec.Raw(self._ready_payloads[decode]))
        # A request has to fit every engine that it may be sent to.
        self._front.dial(wire.encode({**payload, "max_model_len": min(lengths)}))

    def _look_at_processes(self) -> None:
        for name, reason in self._processes.ended():
            if self.fleet.engines[name].life.takes(Signal.DIED):
                self.engine_dead(name, reason)
        for name in self._processes.started():
            self._signal(name, Signal.LAUNCHED)
        if (ended := self._processes.front_ended()) is not None:
            self._log("front", ended)
        self._processes.front_started()  # only of a start that has been told an end is told

    def _probe(self, pair: Pair, proof: bool, now: float) -> None:
        ends = [ready for name in pair if (ready := self.fleet.engines[name].ready) is not None]
        blocks = [end.block_size for end in ends]
        longest = min(end.max_model_len for end in ends)
        length, tokens = beat_size(block_size=min(blocks), max_model_len=longest)
        if proof:
            length, tokens = probe_size(
                block_size=max(blocks),
                max_model_len=longest,
                canary_tokens=self._plan.heartbeat.canary_tokens,
            )
        name = "-".join(pair)
        prompt = self._rng.choices(PROBE_TOKENS, k=length)
        salts = [f"{name}-{self._rng.getrandbits(64):x}" for _ in range(2)]
        request = probe_request(name, prompt, max_tokens=tokens, salt=salts[0], now=now)
        alone = None
        if proof:
            alone = alone_request(name, prompt, max_tokens=tokens, salt=salts[1], now=now)
        self._do(self.dispatch.probe(pair, request, now=now, proof=alone))

    # -- carrying actions out -----------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                self._reply(action)
            elif isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Beat):
                self._tell(self.fleet.beat(action, now=time.monotonic()))
                self._follow_links()
            elif isinstance(action, Tainted):
                self._taint(action.instance)
            elif isinstance(action, Miss):
                self._tell(self.fleet.miss(action, now=time.monotonic()))
                self._follow_links()
            else:
                self._tell([action])

    def _send(self, action: Send) -> None:
        endpoint = self._endpoints[action.instance]
        if not endpoint.send(action.kind, action.payload, action.frames):
            self._undelivered(action.instance)

    def _reply(self, reply: Reply) -> None:
        message = wire.Outputs(
            outputs=reply.outputs,
            timestamp=reply.timestamp or time.monotonic(),
            weight_version=reply.weight_version,
        )
        self._say(reply.api, wire.encode(message), reply.frames)

    def _say(self, api: int, payload: bytes, frames: Sequence[bytes] = ()) -> None:
        self._front.send(api, payload, frames, seq=self._journal.output(api, payload, frames))

    def _undelivered(self, name: str) -> None:
        """No engine was there to be sent to. One that is only just loading is not lost by that."""
        life = self.fleet.engines[name].life
        if life.routable:
            self.engine_lost(name)
        else:
            self._lose(name, "it is not connected", may_return=life.takes(Signal.BACK))

    def _taint(self, name: str) -> None:
        """An engine's prefix cache is to be emptied, and no user's request gets there before it is."""
        self._do(self._purges.want(name, now=time.monotonic()))
        self._tell(self.fleet.taint(name))
        self._follow_links()

    def _utility_answered(self, name: str, answer: wire.UtilityOutput, now: float) -> None:
        if not self._purges.answered(name, answer, now=now):
            self._answer(self._calls.answered(name, answer))
        elif not self._purges.wants(name):
            self._tell(self.fleet.clean(name))
            self._follow_links()

    def _answer(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            message = wire.Outputs(timestamp=time.monotonic(), utility_output=answer.output)
            self._say(answer.api, wire.encode(message))

    def _signal(self, name: str, signal: Signal, reason: str = "") -> None:
        self._tell(self.fleet.signal(name, signal, now=time.monotonic(), reason=reason))

    def _lose(self, name: str, reason: str, *, may_return: bool = False) -> None:
        now = time.monotonic()
        self._do(self.dispatch.instance_lost(name, reason, now=now, may_return=may_return))
        self._answer(self._calls.lost(name))
        self._purges.lost(name, now=now)
        self._follow_links()

    def _tell(self, notes: Iterable[Note]) -> None:
        now = time.monotonic()
        for note in notes:
            for told in self._flood.admit(note, now=now):
                self._log(told.subject, told.what)

    def _log(self, subject: str, what: str) -> None:
        at = time.time()
        self._history.add(at, subject, what)
        log_line(f"{subject}: {what}", at=at)

    # -- the admin API ------------------------------------------------------------------------

    def _asked(self, request: admin.Request) -> object:
        if request.op == "status":
            return report.status(
                self.fleet,
                self.dispatch,
                self._front_state,
                started=self._started,
                to_unix=self._to_unix,
            )
        if request.op == "events":
            return self._history.after(request.after)
        if request.op == "timings":
            recent = self.dispatch.recent
            return recent.after(request.after, started=self._started, to_unix=self._to_unix)
        if request.op == "probe":
            self.fleet.beat_now(now=time.monotonic())
            return admin.Done()
        if request.op == "refresh":
            for engine in self.fleet.engines.values():
                if engine.life.routable:
                    self._do(self.dispatch.nudge(engine.name, now=time.monotonic()))
            return admin.Done()
        known = ", ".join(admin.OPERATIONS)
        return admin.Refused(f"unknown operation {request.op!r}; known: {known}")
