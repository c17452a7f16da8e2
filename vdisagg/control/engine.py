"""What the controller knows of one engine: its life, when it was heard, what its scheduler said."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from vdisagg.control import wire
from vdisagg.control.lifecycle import Life
from vdisagg.plan.model import Role

KV_FULL: Final = 0.9
"""Share of the KV cache from which on a request may have to wait for blocks."""


@dataclass
class Engine:
    """One instance. Times are of the controller's monotonic clock, in seconds."""

    name: str
    role: Role
    life: Life = field(default_factory=Life)
    ready: wire.Ready | None = None
    heard_at: float | None = None
    """When it last said anything."""
    silent: bool = False
    """Whether it is suspect, or given up, for having said nothing: a word brings it back."""
    adopted: bool = False
    """Whether it was ready under the controller before this one, and is not connected yet."""
    troubled: bool = False
    """Whether its connector has reported failures since somebody last looked."""
    tainted: bool = False
    """Whether its prefix cache may hold what was not written for it, and is still to be emptied."""
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_blocks_used: int = 0
    transfers: int = 0
    failures: int = 0
    expiries: int = 0
    """Leases of its blocks that have run out (prefill)."""
    stats_at: float | None = None
    probe_at: float = -math.inf
    """From when on it may be probed again."""

    @property
    def usable(self) -> bool:
        """Whether users' requests may be sent to it."""
        return self.life.routable and not self.tainted

    def note(self, stats: wire.SchedulerStats, *, now: float) -> None:
        """Take in one step's statistics."""
        self.stats_at = now
        self.running, self.waiting = stats.num_running_reqs, stats.num_waiting_reqs
        self.kv_usage = stats.kv_cache_usage
        if self.ready is not None:
            # Block 0 is vLLM's null block: usage is a share of the others.
            self.kv_blocks_used = round(stats.kv_cache_usage * (self.ready.num_gpu_blocks - 1))
        moved = wire.connector_stats(stats)
        if moved is not None:
            self._note_transfers(moved)

    def _note_transfers(self, moved: wire.ConnectorStats) -> None:
        failures = (
            len(moved.num_failed_transfers)
            + len(moved.num_failed_notifications)
            + len(moved.num_failed_handshakes)
            + len(moved.num_notifications_after_expiry)
        )
        expiries = len(moved.num_kv_expired_reqs)
        self.transfers += len(moved.bytes_transferred)
        self.failures += failures
        self.expiries += expiries
        self.troubled = self.troubled or failures > 0 or expiries > 0

    def renewed(self) -> None:
        """Another engine core has taken the place: what the old one said is void, totals stay."""
        self.silent = self.adopted = self.troubled = self.tainted = False
        self.running = self.waiting = self.kv_blocks_used = 0
        self.kv_usage = 0.0

    def heard_within(self, period_s: float, *, now: float) -> bool:
        """Whether it has said anything in the last `period_s`."""
        return self.heard_at is not None and now - self.heard_at < period_s

    def full(self, legs: int, *, probes: int = 0) -> bool:
        """Whether a request has to wait for a place, or for blocks.

        `legs`: those that we have there; `probes`: how many of these are probes, which don't count.
        """
        if self.kv_usage > KV_FULL:
            return True
        places = self.ready.max_num_seqs if self.ready is not None else 0
        return 0 < places <= max(legs, self.running + self.waiting) - probes
