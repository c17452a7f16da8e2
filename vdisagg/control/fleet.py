"""What the controller knows of the instances and links together: who is routable, what is due or late.

Pure: signals and beats in, what happened out, as notes for people and as instances to suspect.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from vdisagg.cluster.admin import InstanceStatus, LinkStatus
from vdisagg.control import rotation, wire
from vdisagg.control.actions import Beat, Miss, Note, Pair
from vdisagg.control.engine import KV_FULL, Engine
from vdisagg.control.lifecycle import Life, Signal
from vdisagg.control.link import Link, Urgency, pace_s
from vdisagg.plan.model import Heartbeat, Role


@dataclass
class Fleet:
    """All instances and the links between them. Times: the controller's monotonic clock, in seconds."""

    engines: dict[str, Engine]
    heartbeat: Heartbeat
    rng: random.Random
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Legs at each engine: dispatch's own count, which it keeps up to date."""
    links: dict[Pair, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        prefill = [e.name for e in self.engines.values() if e.role == "prefill"]
        decode = [e.name for e in self.engines.values() if e.role == "decode"]
        self.links = {(p, d): Link() for p in prefill for d in decode}
        self._pace_s = pace_s(self.heartbeat)
        self._routable: list[Pair] = []
        self._looked = -math.inf
        """When `late` was asked last."""

    @classmethod
    def of(
        cls, roles: Mapping[str, Role], heartbeat: Heartbeat, *, now: float, rng: random.Random
    ) -> Fleet:
        """A fleet of planned instances. `rng` spreads the beats."""
        engines = {name: Engine(name, role, Life(since=now)) for name, role in roles.items()}
        return cls(engines, heartbeat, rng)

    def routable(self) -> Sequence[Pair]:
        """The links that users' requests may take."""
        return self._routable

    def working_decode(self) -> list[str]:
        """Decode instances that can compute a request alone."""
        return [e.name for e in self.engines.values() if e.role == "decode" and e.usable]

    def working(self) -> list[str]:
        """Instances of either role that can compute a request alone."""
        return [e.name for e in self.engines.values() if e.usable]

    def slots(self, name: str) -> int:
        """Requests that an engine runs at once; 0 where that is not known."""
        ready = self.engines[name].ready
        return 0 if ready is None else ready.max_num_seqs

    def full(self, name: str) -> bool:
        """Whether a request to this engine may have to wait for KV blocks."""
        return self.engines[name].kv_usage > KV_FULL

    def expired(self, name: str) -> int:
        """Leases of its blocks that have run out, as the (prefill) engine has reported."""
        return self.engines[name].expiries

    def hopeful(self) -> bool:
        """Whether there may be a way in a moment: a link is being proved, or an end may be back."""
        near = {e.name for e in self.engines.values() if e.life.state in ("ready", "suspect")}
        return any(
            near.issuperset(pair) and link.state in ("cold", "probing", "warm")
            for pair, link in self.links.items()
        )

    def awaited(self) -> bool:
        """Whether an instance may be back in a moment."""
        return any(e.life.state == "suspect" for e in self.engines.values())

    def returning(self) -> bool:
        """Whether engines of the controller before this one have yet to connect: that takes a moment."""
        return any(e.adopted and e.life.state == "suspect" for e in self.engines.values())

    def why_no_link(self) -> str:
        """Why no link may be used, in a line for people."""
        for role in ("prefill", "decode"):
            engines = [e for e in self.engines.values() if e.role == role]
            if not any(e.life.routable for e in engines):
                states = "; ".join(_said(e.name, e.life.state, e.life.reason) for e in engines)
                return f"no {role} engine is ready: {states}"
        between = (
            _said("→".join(pair), link.state, link.reason)
            for pair, link in self.links.items()
            if all(self.engines[name].life.routable for name in pair)
        )
        tainted = (
            f"{engine.name} has to empty its prefix cache first"
            for engine in self.engines.values()
            if engine.tainted
        )
        return f"no link works: {'; '.join((*between, *tainted))}"

    # -- what happens to instances ------------------------------------------------------------

    def signal(self, name: str, signal: Signal, *, now: float, reason: str = "") -> list[Note]:
        """Something happened to an instance. A signal without meaning in its state is no news."""
        engine = self.engines[name]
        if signal is Signal.HELLO:
            engine.renewed()
        if not engine.life.takes(signal):
            return []
        before = engine.life.state
        engine.life = engine.life.handle(signal, now=now, reason=reason)
        if engine.life.state == before:
            return []
        engine.adopted = False
        if signal is Signal.BACK:
            engine.silent = False
        for pair in self._links_of(name):
            self._follow(pair, now=now)
        self._refresh()
        because = f": {reason}" if reason else ""
        return [Note(name, f"{before} → {engine.life.state}{because}")]

    def taint(self, name: str) -> list[Note]:
        """What lies in an engine's prefix cache is not to be believed until it is `clean` again."""
        return self._set_tainted(
            name, True, "takes no new requests until its prefix cache is empty"
        )

    def clean(self, name: str) -> list[Note]:
        """An engine's prefix cache has been emptied."""
        return self._set_tainted(name, False, "its prefix cache is empty")

    def restore(self, name: str, generation: int, ready: wire.Ready | None, *, now: float) -> None:
        """An engine that ran under the controller before this one. `ready`: its payload, if it had
        loaded; it is then ready again as soon as it is BACK."""
        engine = self.engines[name]
        engine.ready = ready
        engine.adopted = ready is not None
        if ready is not None:
            engine.life = Life("suspect", now, generation, "adopted; not heard yet")
        else:
            engine.life = Life("connected", now, generation)

    def restore_link(self, pair: Pair, *, now: float) -> None:
        """A link that was warm under the controller before this one. Both ends are restored already."""
        self.links[pair] = self.links[pair].restored(now=now)
        self._refresh()

    def heard(self, name: str, *, now: float) -> bool:
        """An engine has said something. True: it was suspect or given up for its silence, and is BACK."""
        engine = self.engines[name]
        engine.heard_at = now
        if not engine.silent:
            return False
        engine.silent = False
        return True

    def silent(self, *, now: float, waiting_since: Mapping[str, float]) -> list[tuple[str, str]]:
        """Engines that owe an answer since `waiting_since` and have said nothing for the limit, each
        with the reason why to suspect it (LOST). Each is told once."""
        suspects = []
        limit_s = self.heartbeat.limit_s
        for name, since in waiting_since.items():
            engine = self.engines[name]
            quiet_s = now - max(since, engine.heard_at or since)
            if engine.life.state in ("ready", "draining") and quiet_s >= limit_s:
                if not engine.silent:
                    suspects.append((name, f"it has said nothing for {quiet_s:.1f} s"))
                engine.silent = True
        return suspects

    # -- what happens on links ----------------------------------------------------------------

    def beat(self, beat: Beat, *, now: float) -> list[Note]:
        """A request's KV has arrived over a link."""
        link, due, latency_s = self.links[beat.link], self._next_due(now), beat.latency_s
        if not beat.proof:
            after = link.succeeded(
                now=now,
                next_due=due,
                latency_s=latency_s,
                probe=beat.probe,
                matched=beat.matched,
            )
        elif beat.matched is None:
            return self.miss(Miss(beat.link, True, "its tokens could not be compared"), now=now)
        elif beat.matched:
            after = link.proved(now=now, next_due=due, latency_s=latency_s)
        else:
            after = link.refuted(now=now, next_due=due, reason=beat.reason)
        return self._set(beat.link, after)

    def miss(self, miss: Miss, *, now: float) -> list[Note]:
        """A probe failed. A user's failure makes the next probe due at once."""
        link = self.links[miss.link]
        if not miss.probe:
            return self._set(miss.link, link.failed(now=now))
        after = link.missed_beat(
            now=now,
            next_due=self._next_due(now),
            heartbeat=self.heartbeat,
            reason=miss.reason,
        )
        return self._set(miss.link, after)

    def beat_now(self, *, now: float) -> None:
        """Make every link's next probe due, whatever it costs: somebody has asked."""
        for pair, link in self.links.items():
            self.links[pair] = link.urge(Urgency.DEMANDED, now=now)

    # -- time ---------------------------------------------------------------------------------

    def paused(self, pause_s: float) -> None:
        """We have been stopped ourselves for so long: it says nothing of the engines."""
        for engine in self.engines.values():
            if engine.heard_at is not None:
                engine.heard_at += pause_s
            if engine.life.state == "suspect":
                engine.life = replace(engine.life, since=engine.life.since + pause_s)
        for pair, link in self.links.items():
            self.links[pair] = link.paused(pause_s)

    def due(self, *, now: float) -> Iterator[tuple[Pair, bool]]:
        """The links to probe now, and whether the probe has to be a proof; each is marked."""
        self._take_up_troubles(now)
        turn = rotation.in_turn(self.links, now=now)
        admitted = rotation.admitted(turn, self.links, self.engines, now=now, pace_s=self._pace_s)
        for pair in admitted:
            link = self.links[pair]
            self.links[pair] = link.probe_sent(now=now)
            yield pair, link.wants_proof

    def late(self, *, now: float, probes: Mapping[Pair, tuple[str, float]]) -> list[Pair]:
        """The probes to give up now. `probes`: those in flight, each with the instance that its present
        leg is at, and when that leg began.

        One that waits behind other work of an engine that is alive is excused: what it waits there is
        no fault of the link. What it has waited elsewhere still counts.
        """
        at = Counter(name for name, _ in probes.values())
        looked, self._looked = self._looked, now
        late = []
        for pair, (name, began) in probes.items():
            link = self.links[pair]
            if self._excuses(self.engines[name], probes=at[name], now=now):
                self.links[pair] = link.paused(now - max(began, looked))
            elif now - began >= link.probe_limit_s(self.heartbeat):
                late.append(pair)
        return late

    def tick(self, *, now: float) -> list[Note]:
        """Time has passed: links that have had no beat for too long are stale. Call after `late`."""
        return [
            note
            for pair, link in self.links.items()
            for note in self._set(pair, link.aged(now=now, heartbeat=self.heartbeat))
        ]

    # -- what others may ask ------------------------------------------------------------------

    def instance_status(
        self, in_flight: Mapping[str, int], *, to_unix: float
    ) -> list[InstanceStatus]:
        """For `status`. `to_unix`: what to add to our clock to get Unix time."""
        return [
            InstanceStatus(
                name=e.name,
                role=e.role,
                state=e.life.state,
                since=e.life.since + to_unix,
                reason=e.life.reason,
                in_flight=in_flight.get(e.name, 0),
                running=e.running,
                waiting=e.waiting,
                kv_blocks_used=e.kv_blocks_used,
                kv_blocks=e.ready.num_gpu_blocks if e.ready else 0,
                block_size=e.ready.block_size if e.ready else 0,
                max_model_len=e.ready.max_model_len if e.ready else 0,
                vllm_version=e.ready.vllm_version if e.ready else "",
                kv_transfers=e.transfers,
                kv_failures=e.failures,
                kv_expiries=e.expiries,
                stats_at=_unix(e.stats_at, to_unix),
                heard_at=_unix(e.heard_at, to_unix),
                generation=e.life.generation,
            )
            for e in self.engines.values()
        ]

    def link_status(self, *, to_unix: float) -> list[LinkStatus]:
        """For `status`."""
        return [
            LinkStatus(
                prefill=p,
                decode=d,
                state=link.state,
                since=link.since + to_unix,
                transfers=link.transfers,
                last_beat=_unix(link.last_beat, to_unix),
                latency_s=link.latency_s,
                missed=link.missed,
                failures=link.failures,
                mismatches=link.mismatches,
                proofs=link.proofs,
                reason=link.reason,
            )
            for (p, d), link in self.links.items()
        ]

    # -- the inside ---------------------------------------------------------------------------

    def _set_tainted(self, name: str, tainted: bool, what: str) -> list[Note]:
        engine = self.engines[name]
        if engine.tainted is tainted:
            return []
        engine.tainted = tainted
        self._refresh()
        return [Note(name, what)]

    def _next_due(self, now: float) -> float:
        """When a link that has just been beaten is probed, if nothing else goes over it."""
        return now + self._pace_s * self.rng.uniform(0.8, 1.0)

    def _excuses(self, engine: Engine, *, probes: int, now: float) -> bool:
        """Whether a probe's leg at this engine may wait: a long prefill is not death, nor is a queue."""
        if not engine.heard_within(self._pace_s, now=now):
            return False
        legs = self.in_flight.get(engine.name, 0)
        return engine.role == "prefill" or engine.full(legs, probes=probes)

    def _take_up_troubles(self, now: float) -> None:
        """What engines report of their transfers makes their links suspect."""
        for engine in self.engines.values():
            if engine.troubled:
                engine.troubled = False
                for pair in self._links_of(engine.name):
                    self.links[pair] = self.links[pair].urge(Urgency.SUSPECTED, now=now)

    def _links_of(self, name: str) -> list[Pair]:
        return [pair for pair in self.links if name in pair]

    def _follow(self, pair: Pair, *, now: float) -> None:
        """Bring a link's state in line with its ends'."""
        ends = [self.engines[name] for name in pair]
        link = self.links[pair]
        if all(end.life.routable for end in ends):
            if link.state == "cold":
                self.links[pair] = link.ends_ready(now=now)
            return
        lost = [end for end in ends if not end.life.routable]
        if link.state != "cold" and all(end.adopted for end in lost):
            return  # it stays as it was left, until its ends are connected again
        reason = f"{lost[0].name} is {lost[0].life.state}"
        if link.state == "cold":
            self.links[pair] = msgspec.structs.replace(link, reason=reason)
        else:
            self.links[pair] = link.end_lost(reason, now=now)

    def _set(self, pair: Pair, link: Link) -> list[Note]:
        before, self.links[pair] = self.links[pair], link
        if link.state == before.state:
            return []
        self._refresh()
        because = f": {link.reason}" if link.reason else ""
        return [Note("→".join(pair), f"{before.state} → {link.state}{because}")]

    def _refresh(self) -> None:
        self._routable = [
            pair
            for pair, link in self.links.items()
            if link.routable and all(self.engines[name].usable for name in pair)
        ]


def _said(subject: str, state: str, reason: str) -> str:
    return f"{subject} is {state}: {reason}" if reason else f"{subject} is {state}"


def _unix(at: float | None, to_unix: float) -> float | None:
    return None if at is None else at + to_unix
