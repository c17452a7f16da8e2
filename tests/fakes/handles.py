"""A model of prefill and decode engines that counts handles, driven event by event around Dispatch.

Messages wait in a queue each way until an event delivers them, so every order of aborts, steps and
deliveries can be produced. As in vLLM, a decode engine that will not read a handle tells prefill in its
next step, and an engine without work takes no step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fakes.messages import handle, request
from fakes.ways import FakeWays
from vdisagg.cluster.modes import KEY, PD
from vdisagg.control import ledger, wire
from vdisagg.control.actions import Action, Pair, Reply, Send
from vdisagg.control.dispatch import Dispatch, Limits
from vdisagg.control.handover import Nixl
from vdisagg.control.ledger import Note, Open
from vdisagg.control.routing import FewestInFlight


@dataclass
class Job:
    """A leg that an engine works on."""

    request: wire.AddRequest
    reads: str = ""
    """The handle that it has to read first."""
    made: int = 0


class Book:
    """A ledger that keeps what it is told, as a journal does."""

    def __init__(self) -> None:
        self.open = Open([], {})

    def _take(self, *note: str | bytes) -> None:
        taken: Note = [*note]
        self.open.take(taken)

    def begun(self, leg: str, prefill: str) -> None:
        self._take(ledger.BEGUN, leg, prefill)

    def handed(self, leg: str, under: str, at: str) -> None:
        self._take(ledger.HANDED, leg, under, at)

    def over(self, leg: str) -> None:
        self._take(ledger.OVER, leg)

    def sample(self, prefill: str, handle: bytes) -> None:
        self._take(ledger.SAMPLE, prefill, handle)

    def gone(self, prefill: str) -> None:
        self._take(ledger.GONE, prefill)


@dataclass
class Engine:
    """One engine and the two queues between it and the controller."""

    alive: bool = True
    connected: bool = True
    inbox: deque[Send] = field(default_factory=deque)
    outbox: deque[wire.Outputs] = field(default_factory=deque)
    jobs: dict[str, Job] = field(default_factory=dict)
    giving_back: list[str] = field(default_factory=list)


class World:
    """Engines p0…, d0… around a Dispatch. `held`: handle → the prefill engine that keeps it."""

    def __init__(self, prefill: int = 1, decode: int = 1) -> None:
        self.engines = {f"p{i}": Engine() for i in range(prefill)}
        self.engines |= {f"d{i}": Engine() for i in range(decode)}
        self.ways = FakeWays(self.links)
        self.book = Book()
        self._sequence = 0
        self.dispatch = self._controller()
        self.held: dict[str, str] = {}
        self.read: Counter[str] = Counter()
        self.given_back: Counter[str] = Counter()
        self.buried: set[str] = set()
        """Handles that went with their prefill engine: reading them fails, as it should."""
        self.entrusted: set[str] = set()
        """Handles that a decode engine was to give back when it died: the lease ends them."""
        self.misread: list[str] = []
        self.freed_too_early: list[str] = []
        """Given back while prefill still computed it: that ends the engine."""
        self.ended: Counter[str] = Counter()
        self.asked: dict[str, wire.AddRequest] = {}
        self.told: Counter[str] = Counter()
        """Tokens that the front end has, by request."""
        self.aborted: set[str] = set()

    def links(self) -> list[Pair]:
        """All pairs whose ends live and are connected."""
        up = [n for n, e in self.engines.items() if e.alive and e.connected]
        return [(p, d) for p in up if p[0] == "p" for d in up if d[0] == "d"]

    # -- events -------------------------------------------------------------------------------

    def add(self, name: str, max_tokens: int = 2, mode: str = PD) -> None:
        """The front end asks."""
        extra = {KEY: mode}
        sampling = {"temperature": 0.0, "max_tokens": max_tokens, "extra_args": extra}
        self.asked[name] = request(name, sampling)
        self._do(self.dispatch.add(0, self.asked[name], (), now=0.0))

    def abort(self, name: str) -> None:
        """The front end gives a request up."""
        self.aborted.add(name)
        self._do(self.dispatch.abort(0, [name], now=0.0))

    def tick(self, now: float) -> None:
        """Deadlines pass."""
        self._do(self.dispatch.tick(now=now))

    def front_lost(self) -> None:
        """The front end goes, and wants no answer any more."""
        self.aborted |= self.asked.keys()
        self._do(self.dispatch.front_lost(now=0.0))

    def lose(self, name: str, lost: Callable[[int], int] = lambda count: 0) -> None:
        """The connection breaks. `lost`: see take_over."""
        engine = self.engines[name]
        for _ in range(lost(len(engine.inbox))):
            engine.inbox.pop()
        for _ in range(lost(len(engine.outbox))):
            engine.outbox.popleft()
        while engine.inbox:
            self._deliver(name)
        engine.connected = False
        self._do(self.dispatch.instance_lost(name, "cut", now=0.0, may_return=True))

    def give_up(self, name: str) -> None:
        """It has been away for too long."""
        self._do(self.dispatch.instance_lost(name, "silent", now=0.0))

    def back(self, name: str) -> None:
        """The connection is there again."""
        self.engines[name].connected = True
        self._do(self.dispatch.instance_back(name, now=0.0))

    def die(self, name: str) -> None:
        """The engine ends, and what it held with it."""
        self.entrusted |= set(self._entrusted(self.engines[name]))
        self.engines[name] = Engine(alive=False, connected=False)
        self.buried |= {h for h, p in self.held.items() if p == name}
        self.held = {h: p for h, p in self.held.items() if p != name}
        self._do(self.dispatch.instance_lost(name, "dead", now=0.0))

    def restart(self, name: str) -> None:
        """Another engine takes its place."""
        self.engines[name] = Engine()
        self.dispatch.instance_renewed(name)

    def take_over(self, lost: Callable[[int], int]) -> None:
        """The controller is killed, and another one begins; the engines are `back` later.

        `lost`: out of so many messages under way one way, how many did not arrive: the last ones that went
        to an engine, the first ones that came from it.
        """
        for engine in self.engines.values():
            for _ in range(lost(len(engine.inbox))):
                engine.inbox.pop()
            for _ in range(lost(len(engine.outbox))):
                engine.outbox.popleft()
            engine.connected = False
        self.ways.coming = True
        self.dispatch = self._controller()
        left = self.book.open
        self.dispatch.inherit(left.copy(), dict(left.samples), [*self.engines])
        for name, asked in self.asked.items():
            if not self.ended[name] and name not in self.aborted:
                begun = bool(self.told[name])
                told = [7] * self.told[name]
                self._do(self.dispatch.adopt(0, asked, (), told, begun=begun, now=0.0))

    def all_back(self) -> None:
        """All engines are connected again."""
        for name, engine in self.engines.items():
            if not engine.connected:
                self.back(name)
        self.ways.coming = False

    def moves(self) -> Iterator[Callable[[], None]]:
        """What can happen next by itself: a delivery either way, or a step."""
        for name, engine in self.engines.items():
            if engine.inbox:
                yield lambda name=name: self._deliver(name)  # type: ignore[misc]
            if engine.jobs:
                yield lambda name=name: self._step(name)  # type: ignore[misc]
            if engine.outbox and engine.connected:
                yield lambda name=name: self._hear(name)  # type: ignore[misc]

    def drain(self) -> None:
        """Let everything happen that still can."""
        while (move := next(self.moves(), None)) is not None:
            move()

    # -- the inside ---------------------------------------------------------------------------

    def _controller(self) -> Dispatch:
        limits = Limits(request_s=100.0, handover_s=100.0, decode_alone=False)
        first, self._sequence = self._sequence, self._sequence + 10_000
        return Dispatch(Nixl(), FewestInFlight(), self.ways, first, limits, ledger=self.book)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send) and self.engines[action.instance].connected:
                self.engines[action.instance].inbox.append(action)
            elif isinstance(action, Reply):
                for output in action.outputs:
                    self.ended[output.request_id] += output.finish_reason is not None
                    self.told[output.request_id] += len(output.new_token_ids)

    def _entrusted(self, engine: Engine) -> Iterator[str]:
        yield from engine.giving_back
        for asked in (
            *(job.request for job in engine.jobs.values()),
            *(wire.decode_add(m.payload) for m in engine.inbox if m.kind == wire.ADD),
        ):
            leg, _, _, front_id = asked.request_id.split(":")
            if leg == "r" or front_id in self.aborted:
                yield _reads(asked)

    def _deliver(self, name: str) -> None:
        engine, message = self.engines[name], self.engines[name].inbox.popleft()
        if message.kind == wire.ABORT:
            for leg in wire.decode_ids(message.payload):
                job = engine.jobs.pop(leg, None)
                if job is not None and job.reads:
                    engine.giving_back.append(job.reads)
            return
        asked = wire.decode_add(message.payload)
        reads = _reads(asked)
        if asked.abort_immediately:
            engine.giving_back.append(reads)
        else:
            engine.jobs[asked.request_id] = Job(asked, reads)

    def _step(self, name: str) -> None:
        engine = self.engines[name]
        for given in engine.giving_back:
            self.given_back[given] += 1
            self.held.pop(given, None)
            if any(given in other.jobs for other in self.engines.values()):
                self.freed_too_early.append(given)
        engine.giving_back.clear()
        made = [self._advance(name, leg, job) for leg, job in list(engine.jobs.items())]
        engine.outbox.append(wire.Outputs(outputs=made))

    def _advance(self, name: str, leg: str, job: Job) -> wire.Output:
        if job.reads in self.buried:
            del self.engines[name].jobs[leg]
            return wire.Output(leg, [], finish_reason=wire.ERROR)
        if job.reads:
            if self.held.pop(job.reads, None) is None:
                self.misread.append(job.reads)
            self.read[job.reads] += 1
            job.reads = ""
        job.made += 1
        output = wire.Output(leg, [7])
        if job.made == (job.request.sampling_params or {})["max_tokens"]:
            output.finish_reason = wire.LENGTH
            del self.engines[name].jobs[leg]
            if leg.startswith("p:"):
                self.held[leg] = name
                output.kv_transfer_params = wire.raw(handle(leg))
        return output

    def _hear(self, name: str) -> None:
        message = self.engines[name].outbox.popleft()
        self._do(self.dispatch.outputs(name, message, (), now=0.0))


def _reads(asked: wire.AddRequest) -> str:
    """The handle that a request carries, empty without one."""
    extra = (asked.sampling_params or {}).get("extra_args") or {}
    return str(extra.get("kv_transfer_params", {}).get("remote_request_id") or "")
