"""The controller's loop: sockets at the edges, fleet and dispatch inside, actions carried out here."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from vdisagg.cluster import admin
from vdisagg.control import wire
from vdisagg.control.actions import Action, Beat, Miss, Note, Pair, Reply, Send
from vdisagg.control.admin_socket import AdminSocket
from vdisagg.control.admission import Admission, admitted
from vdisagg.control.dispatch import Dispatch
from vdisagg.control.dummies import probe_request, probe_size
from vdisagg.control.endpoint import Endpoint
from vdisagg.control.fleet import Fleet
from vdisagg.control.front import Front
from vdisagg.control.handover import HANDOVERS
from vdisagg.control.lifecycle import SUSPECT_S, Signal
from vdisagg.control.processes import ProcessWatch
from vdisagg.control.routing import FewestInFlight
from vdisagg.control.sockets import Sockets
from vdisagg.control.utility import Answer, Calls
from vdisagg.errors import ProtocolError
from vdisagg.plan.model import Plan

TICK_S: Final = 0.05
"""How often links are looked at; under load there are thousands of turns a second."""

SWEEP_S: Final = 0.25
EVENTS_KEPT: Final = 1000
PROBE_TOKENS: Final = range(3, 250)
"""Token ids of probes: every vocabulary has them, and ids below are often special."""


class Controller:
    """Joins endpoints and the played engine. One thread, one loop; see `run`."""

    def __init__(
        self, plan: Plan, directory: Path, *, rng: random.Random, since: float = 0.0
    ) -> None:
        """Binds all endpoints; raises PlanConflict. `since`: Unix time when `up` began."""
        self._plan = plan
        self._rng = rng
        self._started = time.time()
        self._to_unix = self._started - time.monotonic()
        self._stopping = False
        self._next_tick = 0.0
        self._next_sweep = 0.0
        self._events: deque[admin.Event] = deque(maxlen=EVENTS_KEPT)
        self._ready_payloads: dict[str, bytes] = {}
        self._processes = ProcessWatch(plan, since=since)
        self._front_state: admin.FrontState = "waiting"
        roles = {i.name: i.role for i in plan.instances}
        self.fleet = Fleet.of(roles, plan.heartbeat, now=time.monotonic())
        self.dispatch = Dispatch(
            HANDOVERS[plan.connector],
            FewestInFlight(),
            self.fleet.routable,
            first_sequence=time.time_ns() // 1000,
            request_timeout_s=plan.timeouts.request_s,
        )
        self._calls = Calls()
        self._sockets = Sockets()
        self._admission = Admission(self._sockets, admitted(plan), self._turned_away)
        self._endpoints = {i.name: Endpoint(self._sockets, i, self) for i in plan.instances}
        self._front = Front(self._sockets, plan.front_end.handshake, self)
        self._admin = AdminSocket(self._sockets, directory, self._asked)

    def run(self) -> None:
        """Serve until `stop`."""
        self._log("controller", f"serving cluster {self._plan.name}")
        try:
            while not self._stopping:
                self._sockets.turn()
                self._tick(time.monotonic())
        finally:
            self._admin.close()
            self._sockets.close()

    def stop(self) -> None:
        """End `run` within a turn; may be called by a signal handler."""
        self._stopping = True

    def _turned_away(self, what: str, address: str) -> None:
        self._log(what, f"turned away {address}, which is no node's address (data_ip)")

    # -- what engines say (EngineEvents) ------------------------------------------------------

    def engine_hello(self, name: str) -> None:
        """See EngineEvents."""
        state = self.fleet.engines[name].life.state
        self._signal(name, Signal.LAUNCHED)
        if state in ("ready", "suspect", "draining"):
            self._lose(name, "a new engine core took its place")
        self._signal(name, Signal.HELLO)

    def engine_ready(self, name: str, payload: bytes, ready: wire.Ready) -> None:
        """See EngineEvents."""
        self._ready_payloads[name] = payload
        self.fleet.engines[name].ready = ready
        self._signal(name, Signal.READY)

    def engine_outputs(self, name: str, message: wire.Outputs, frames: Sequence[bytes]) -> None:
        """See EngineEvents."""
        if message.scheduler_stats is not None:
            self.fleet.engines[name].note(message.scheduler_stats, now=time.monotonic())
        if message.utility_output is not None:
            self._answer(self._calls.answered(name, message.utility_output))
        if message.outputs:
            self._do(self.dispatch.outputs(name, message, frames, now=time.monotonic()))
        if not self.dispatch.in_flight[name]:
            self._endpoints[name].rest()

    def engine_lost(self, name: str) -> None:
        """See EngineEvents."""
        reason = "its connections are gone"
        self._signal(name, Signal.LOST, reason)
        self._lose(name, reason, may_return=True)

    def engine_back(self, name: str) -> None:
        """See EngineEvents."""
        if self.fleet.engines[name].life.takes(Signal.BACK):
            self._signal(name, Signal.BACK)
            self._do(self.dispatch.instance_back(name, now=time.monotonic()))

    def engine_dead(self, name: str, reason: str) -> None:
        """See EngineEvents."""
        self._signal(name, Signal.DIED, reason)
        self._lose(name, reason)

    # -- what the front end says (FrontEvents) ------------------------------------------------

    def front_attached(self, api_servers: int) -> None:
        """See FrontEvents."""
        self._front_state = "attached"
        self._log("front", f"attached, API servers: {api_servers}")

    def front_message(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes]) -> None:
        """See FrontEvents."""
        now = time.monotonic()
        if kind == wire.ADD:
            self._add(api, payload, frames, now=now)
        elif kind == wire.ABORT:
            self._do(self.dispatch.abort(api, wire.decode_ids(payload), now=now))
        elif kind == wire.UTILITY:
            ready = (e.name for e in self.fleet.engines.values() if e.life.routable)
            sends, answers = self._calls.call(api, payload, ready)
            self._do(sends)
            self._answer(answers)

    def _add(self, api: int, payload: bytes, frames: Sequence[bytes], *, now: float) -> None:
        try:
            request = wire.decode_add(payload)
        except ProtocolError as exc:
            front_id = wire.decode_added_id(payload).request_id
            self._do(self.dispatch.refuse(api, front_id, str(exc)))
        else:
            self._do(self.dispatch.add(api, request, frames, now=now))

    def front_fault(self, reason: str) -> None:
        """See FrontEvents."""
        self._log("front", reason)

    def front_lost(self) -> None:
        """See FrontEvents."""
        self._front_state = "gone"
        self._log("front", "its connections are gone")
        self._front.hang_up()
        self._calls.forget()
        self._do(self.dispatch.front_lost(now=time.monotonic()))

    # -- time ---------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_S
        for pair in self.fleet.due(now=now):
            self._probe(pair, now)
        self._dial_front()
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_S
        self._look_at_processes()
        limits = self.fleet.probe_limits_s()
        self._do(self.dispatch.tick(now=now, probe_limit_s=limits))
        for engine in self.fleet.engines.values():
            if engine.life.state == "suspect" and now - engine.life.since > SUSPECT_S:
                self.engine_dead(engine.name, engine.life.reason)

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
        for name in self._processes.started():
            self._signal(name, Signal.LAUNCHED)
        for name, reason in self._processes.ended():
            if self.fleet.engines[name].life.takes(Signal.DIED):
                self.engine_dead(name, reason)

    def _probe(self, pair: Pair, now: float) -> None:
        ends = [ready for name in pair if (ready := self.fleet.engines[name].ready) is not None]
        length, tokens = probe_size(
            block_size=max((end.block_size for end in ends), default=16),
            max_model_len=min((end.max_model_len for end in ends), default=512),
            canary_tokens=self._plan.heartbeat.canary_tokens,
        )
        request = probe_request(
            f"{pair[0]}-{pair[1]}",
            self._rng.choices(PROBE_TOKENS, k=length),
            max_tokens=tokens,
            salt=f"{self._rng.getrandbits(64):016x}",
            now=time.time(),
        )
        self._do(self.dispatch.probe(pair, request, now=now))

    # -- carrying actions out -----------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        now = time.monotonic()
        for action in actions:
            match action:
                case Send(instance, kind, payload, frames):
                    if not self._endpoints[instance].send(kind, payload, frames):
                        self._undelivered(instance)
                case Reply(api, outputs, timestamp, frames, weight_version):
                    message = wire.Outputs(
                        outputs=outputs,
                        timestamp=timestamp or now,
                        weight_version=weight_version,
                    )
                    self._front.send(api, wire.encode(message), frames)
                case Beat():
                    self._tell(self.fleet.beat(action, now=now))
                case Miss():
                    self._tell(self.fleet.miss(action, now=now))
                case Note():
                    self._tell([action])

    def _undelivered(self, name: str) -> None:
        """No engine was there to be sent to. One that is only just loading is not lost by that."""
        life = self.fleet.engines[name].life
        if life.routable:
            self.engine_lost(name)
        else:
            self._lose(name, "it is not connected", may_return=life.takes(Signal.BACK))

    def _answer(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            message = wire.Outputs(timestamp=time.monotonic(), utility_output=answer.output)
            self._front.send(answer.api, wire.encode(message))

    def _signal(self, name: str, signal: Signal, reason: str = "") -> None:
        self._tell(self.fleet.signal(name, signal, now=time.monotonic(), reason=reason))

    def _lose(self, name: str, reason: str, *, may_return: bool = False) -> None:
        now = time.monotonic()
        self._do(self.dispatch.instance_lost(name, reason, now=now, may_return=may_return))
        self._answer(self._calls.lost(name))

    def _tell(self, notes: Iterable[Note]) -> None:
        for note in notes:
            self._log(note.subject, note.what)

    def _log(self, subject: str, what: str) -> None:
        at = time.time()
        self._events.append(admin.Event(at, subject, what))
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        print(f"{stamp} {subject}: {what}", flush=True)

    # -- the admin API ------------------------------------------------------------------------

    def _asked(self, op: str) -> object:
        if op == "status":
            return self.status()
        if op == "events":
            return admin.Events(list(self._events))
        if op == "probe":
            self.fleet.beat_now(now=time.monotonic())
            return admin.Done()
        if op == "refresh":
            for engine in self.fleet.engines.values():
                if engine.life.routable:
                    self._do(self.dispatch.nudge(engine.name, now=time.monotonic()))
            return admin.Done()
        return admin.Refused(f"unknown operation {op!r}; known: {', '.join(admin.OPERATIONS)}")

    def status(self) -> admin.ControllerStatus:
        """What `vdisagg status` shows."""
        counts = self.dispatch.counts
        return admin.ControllerStatus(
            pid=os.getpid(),
            started=self._started,
            front_end=self._front_state,
            instances=self.fleet.instance_status(self.dispatch.in_flight, to_unix=self._to_unix),
            links=self.fleet.link_status(to_unix=self._to_unix),
            totals=admin.Totals(
                received=counts.received,
                in_flight=self.dispatch.users_in_flight,
                finished=counts.finished,
                failed=counts.failed,
                aborted=counts.aborted,
                output_tokens=counts.output_tokens,
                handles_held=self.dispatch.handles_held,
            ),
        )
