"""Probes stay cheap for every engine, and every link has its turn."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from vdisagg.control.actions import Pair
from vdisagg.control.engine import Engine
from vdisagg.control.lifecycle import Life
from vdisagg.control.link import Link, Urgency
from vdisagg.control.rotation import CREDIT, SHARE, admitted, in_turn

PACE_S = 10.0


@dataclass
class Idle:
    """Engines and idle links between them, and what probing them costs over time."""

    prefill: int
    decode: int
    latency_s: float
    sent: list[tuple[float, Pair]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = [f"p{i}" for i in range(self.prefill)] + [f"d{i}" for i in range(self.decode)]
        self.engines = {
            name: Engine(name, "prefill" if name[0] == "p" else "decode", Life("ready"))
            for name in names
        }
        rng = self.rng = random.Random(0)
        self.links = {
            (f"p{i}", f"d{j}"): Link(
                "warm", last_beat=0.0, due=PACE_S * rng.uniform(0.8, 1.0), probe_s=self.latency_s
            )
            for i in range(self.prefill)
            for j in range(self.decode)
        }

    def admitted(self, now: float) -> list[Pair]:
        """Those that may be probed now; each is sent, and answered at once."""
        turn = in_turn(self.links, now=now)
        chosen = []
        for pair in admitted(turn, self.links, self.engines, now=now, pace_s=PACE_S):
            due = now + PACE_S * self.rng.uniform(0.8, 1.0)
            sent = self.links[pair].probe_sent(now=now)
            self.links[pair] = sent.proved(now=now, next_due=due, latency_s=self.latency_s)
            chosen.append(pair)
        self.sent += [(now, pair) for pair in chosen]
        return chosen

    def run(self, until_s: float, step_s: float = 0.25) -> None:
        """Let time pass."""
        for step in range(int(until_s / step_s)):
            self.admitted(step * step_s)

    def share(self, over_s: float) -> float:
        """The largest share of an engine's time that its probes took."""
        probes = Counter(name for _, pair in self.sent for name in pair)
        return max(probes.values()) * self.latency_s / over_s

    def longest_gap_s(self, until_s: float) -> float:
        """The longest time that any link was without a probe."""
        times: dict[Pair, list[float]] = {pair: [] for pair in self.links}
        for now, pair in self.sent:
            times[pair].append(now)
        return max(
            b - a
            for ours in times.values()
            for a, b in zip([0.0, *ours], [*ours, until_s], strict=True)
        )


def test_16_by_16_idle_links_cost_no_engine_more_than_the_share_and_each_has_its_turn() -> None:
    """The figures of docs/links.md."""
    idle = Idle(16, 16, latency_s=0.05)
    idle.run(400.0)
    # What an engine may be behind with is sent on top, once.
    assert idle.share(400.0) <= SHARE + CREDIT * 0.05 / 400.0
    assert idle.longest_gap_s(400.0) <= 50.0
    assert len({pair for _, pair in idle.sent}) == 256


def test_where_the_share_allows_for_it_no_link_waits_for_its_turn() -> None:
    idle = Idle(4, 4, latency_s=0.02)
    idle.run(100.0)
    assert idle.longest_gap_s(100.0) <= PACE_S + 1.0


def test_slow_probes_still_go_once_a_pace_and_engine() -> None:
    idle = Idle(2, 2, latency_s=5.0)
    idle.run(200.0)
    assert 2 * PACE_S <= idle.longest_gap_s(200.0) <= 4 * PACE_S
    probes = Counter(name for _, pair in idle.sent for name in pair)
    assert max(probes.values()) <= 200.0 / PACE_S + CREDIT


def exhausted() -> Idle:
    """Two links at a prefill engine that has had its share."""
    idle = Idle(1, 2, latency_s=0.5)
    idle.engines["p0"].probe_at = 1000.0
    idle.links = {pair: replace(link, due=5.0) for pair, link in idle.links.items()}
    return idle


def test_what_is_over_the_share_waits() -> None:
    idle = exhausted()
    assert idle.admitted(5.0) == []
    assert idle.admitted(1000.0) != []


def test_a_first_proof_waits_for_nobody() -> None:
    idle = exhausted()
    idle.links["p0", "d1"] = Link("probing", due=5.0)
    assert idle.admitted(5.0) == [("p0", "d1")]


def test_what_somebody_asked_for_waits_for_nobody() -> None:
    idle = exhausted()
    idle.links["p0", "d1"] = idle.links["p0", "d1"].urge(Urgency.DEMANDED, now=5.0)
    assert idle.admitted(5.0) == [("p0", "d1")]


def test_a_link_that_is_down_is_proved_within_the_share() -> None:
    idle = exhausted()
    idle.links["p0", "d1"] = Link("down", due=5.0)
    assert idle.admitted(5.0) == []


def test_the_most_overdue_goes_first_and_a_suspected_one_before_it() -> None:
    link = Link("warm", last_beat=0.0)
    links = {
        ("p0", "d0"): replace(link, due=3.0),
        ("p0", "d1"): replace(link, due=2.0),
        ("p0", "d2"): replace(link, due=9.0),
        ("p0", "d3"): link.urge(Urgency.SUSPECTED, now=4.0),
        ("p0", "d4"): Link("cold"),
    }
    assert in_turn(links, now=5.0) == [("p0", "d3"), ("p0", "d1"), ("p0", "d0")]


def test_a_link_is_not_probed_while_an_end_is_not_ready() -> None:
    idle = Idle(1, 2, latency_s=0.5)
    idle.engines["d0"].life = Life("suspect")
    assert idle.admitted(20.0) == [("p0", "d1")]
