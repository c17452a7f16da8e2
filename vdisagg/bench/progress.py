"""How far a load has come, for whoever watches it: counts, rates and latencies so far."""

from __future__ import annotations

from vdisagg.bench.samples import Sample

LATE_S = 0.01
"""A request that is sent later than this counts as late: what an idle machine never takes."""


class Thinned:
    """A bounded, even choice of values: when it is full, every other one goes, and from then on only
    every other one is taken."""

    def __init__(self, most: int = 2048) -> None:
        self.values: list[float] = []
        self._most = most
        self._stride = 1
        self._seen = 0

    def add(self, value: float) -> None:
        """One more value."""
        taken = self._seen % self._stride == 0
        self._seen += 1
        if not taken:
            return
        self.values.append(value)
        if len(self.values) >= self._most:
            self.values = self.values[::2]
            self._stride *= 2


class Progress:
    """Written by the load alone; others may read it from another thread. Times are seconds."""

    def __init__(
        self, total: int, *, asked_rate_per_s: float | None = None, label: str = ""
    ) -> None:
        """`asked_rate_per_s`: None where all is sent at once, or by a trace's clock."""
        self.label = label
        self.total = total
        self.asked_rate_per_s = asked_rate_per_s
        self.sent = 0
        self.finished = 0
        """Failed ones included."""
        self.failed = 0
        self.first_sent_s: float | None = None
        """After the load's start, as the next."""
        self.last_sent_s = 0.0
        self.late = 0
        """Requests that were sent more than LATE_S late, the cap's holding back apart."""
        self.latest_s = 0.0
        self.ttft_s = Thinned()
        self.tpot_s = Thinned()

    @property
    def achieved_rate_per_s(self) -> float | None:
        """Requests sent per second so far; None before there are two."""
        if self.first_sent_s is None or self.last_sent_s <= self.first_sent_s:
            return None
        return (self.sent - 1) / (self.last_sent_s - self.first_sent_s)

    def on_sent(self, at_s: float, late_s: float) -> None:
        """A request goes out, `at_s` after the load's start."""
        self.sent += 1
        if self.first_sent_s is None:
            self.first_sent_s = at_s
        self.last_sent_s = at_s
        self.late += late_s > LATE_S
        self.latest_s = max(self.latest_s, late_s)

    def on_finished(self, sample: Sample) -> None:
        """It is over, one way or the other."""
        self.finished += 1
        if sample.failure is not None:
            self.failed += 1
            return
        if (ttft := sample.ttft_s) is not None:
            self.ttft_s.add(ttft)
        if (tpot := sample.tpot_s) is not None:
            self.tpot_s.add(tpot)
