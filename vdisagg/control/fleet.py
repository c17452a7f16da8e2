"""What the controller knows of the instances and links: states, engines' statistics, who is routable.

Pure: signals and beats in, what happened out, as notes for people and as instances to give up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vdisagg.cluster.admin import InstanceStatus, LinkStatus
from vdisagg.control import wire
from vdisagg.control.actions import Beat, Miss, Note, Pair
from vdisagg.control.lifecycle import Life, Signal
from vdisagg.control.link import Link
from vdisagg.plan.model import Heartbeat, Role


@dataclass
class Engine:
    """One instance: its life, its ready payload, and what its scheduler said last."""

    name: str
    role: Role
    life: Life = field(default_factory=Life)
    ready: wire.Ready | None = None
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    transfers: int = 0
    failures: int = 0
    stats_at: float | None = None

    def note(self, stats: wire.SchedulerStats, *, now: float) -> None:
        """Take in one step's statistics."""
        self.stats_at = now
        self.running, self.waiting = stats.num_running_reqs, stats.num_waiting_reqs
        if self.ready is not None:
            # Block 0 is vLLM's null block: usage is a share of the others.
            self.kv_blocks_used = round(stats.kv_cache_usage * (self.ready.num_gpu_blocks - 1))
        moved = wire.connector_stats(stats)
        if moved is not None:
            self.transfers += len(moved.bytes_transferred)
            self.failures += (
                len(moved.num_failed_transfers)
                + len(moved.num_failed_notifications)
                + len(moved.num_failed_handshakes)
                + len(moved.num_kv_expired_reqs)
                + len(moved.num_notifications_after_expiry)
            )


@dataclass
class Fleet:
    """All instances and the links between them."""

    engines: dict[str, Engine]
    heartbeat: Heartbeat
    links: dict[Pair, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        prefill = [e.name for e in self.engines.values() if e.role == "prefill"]
        decode = [e.name for e in self.engines.values() if e.role == "decode"]
        self.links = {(p, d): Link() for p in prefill for d in decode}
        self._routable: list[Pair] = []

    @classmethod
    def of(cls, roles: Mapping[str, Role], heartbeat: Heartbeat, *, now: float) -> Fleet:
        """A fleet of planned instances."""
        planned = Life(since=now)
        return cls({name: Engine(name, role, planned) for name, role in roles.items()}, heartbeat)

    def routable(self) -> Sequence[Pair]:
        """The links that users' requests may take."""
        return self._routable

    def signal(self, name: str, signal: Signal, *, now: float, reason: str = "") -> list[Note]:
        """Something happened to an instance. A signal without meaning in its state is no news."""
        engine = self.engines[name]
        if not engine.life.takes(signal):
            return []
        before = engine.life.state
        engine.life = engine.life.handle(signal, now=now, reason=reason)
        if engine.life.state == before:
            return []
        for pair in self._links_of(name):
            self._follow(pair, now=now)
        self._refresh()
        because = f": {reason}" if reason else ""
        return [Note(name, f"{before} → {engine.life.state}{because}")]

    def beat(self, beat: Beat, *, now: float) -> list[Note]:
        """A request's KV has arrived over a link."""
        return self._set(
            beat.link,
            self.links[beat.link].succeeded(
                now=now,
                latency_s=beat.latency_s,
                interval_s=self.heartbeat.interval_s,
                probe=beat.probe,
                matched=beat.matched,
            ),
        )

    def miss(self, miss: Miss, *, now: float) -> list[Note]:
        """A probe failed. A user's failure makes the next probe due at once."""
        link = self.links[miss.link]
        if not miss.probe:
            return self._set(miss.link, link.suspected(now=now))
        return self._set(
            miss.link,
            link.missed_beat(
                now=now,
                interval_s=self.heartbeat.interval_s,
                misses=self.heartbeat.misses,
                reason=miss.reason,
            ),
        )

    def beat_now(self, *, now: float) -> None:
        """Make every link's next probe due."""
        self.links = {pair: link.suspected(now=now) for pair, link in self.links.items()}

    def due(self, *, now: float) -> Iterator[Pair]:
        """The links that want a probe now; each is marked as being probed."""
        for pair, link in self.links.items():
            if link.probe_due(now=now):
                self.links[pair] = link.probe_sent()
                yield pair

    def probe_limits_s(self) -> dict[Pair, float]:
        """How long a probe may take, per link."""
        interval = self.heartbeat.interval_s
        return {pair: link.probe_limit_s(interval) for pair, link in self.links.items()}

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
                stats_at=None if e.stats_at is None else e.stats_at + to_unix,
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
                transfers=link.transfers,
                last_beat=None if link.last_beat is None else link.last_beat + to_unix,
                latency_s=link.latency_s,
                mismatches=link.mismatches,
                reason=link.reason,
            )
            for (p, d), link in self.links.items()
        ]

    def _links_of(self, name: str) -> list[Pair]:
        return [pair for pair in self.links if name in pair]

    def _follow(self, pair: Pair, *, now: float) -> None:
        """Bring a link's state in line with its ends'."""
        ends = [self.engines[name].life for name in pair]
        link = self.links[pair]
        if all(end.routable for end in ends):
            if link.state == "cold":
                self.links[pair] = link.ends_ready(now=now)
        elif link.state != "cold":
            lost = next(n for n in pair if not self.engines[n].life.routable)
            self.links[pair] = link.end_lost(f"{lost} is {self.engines[lost].life.state}")

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
            if link.routable and all(self.engines[name].life.routable for name in pair)
        ]
