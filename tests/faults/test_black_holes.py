"""Black holes and resets between the controller and an engine (docs/faults.md): told in time, and nobody
is harmed. The real controller, fake engines behind relays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.cluster import Cluster
from fakes.engine import continuation
from fakes.limit import Limit
from fakes.relayed import RelayedEngine
from vdisagg.control import wire

INTERVAL_S = 0.3
LIMIT_S = 3 * INTERVAL_S
SLACK_S = 1.0
"""What a slow machine may take on top of any limit."""
PROMPT = list(range(40))
PATIENCE_S = 60.0
PHASES = ("idle", "before first byte", "mid-stream")


class Holes(Cluster):
    """2P2D with a relay before every socket of every engine."""

    def launch(self, name: str, **switches: object) -> RelayedEngine:
        instance = next(i for i in self.plan.instances if i.name == name)
        engine = RelayedEngine(instance, self.store)
        engine.behaviour.step_s = 0.005
        self.engines[name] = engine
        return engine

    def engine(self, name: str) -> RelayedEngine:
        engine = self.engines[name]
        assert isinstance(engine, RelayedEngine)
        return engine

    def used(self, name: str) -> bool:
        """Whether any request may be sent to it."""
        status = self.status()
        links = [k for k in status.links if name in (k.prefill, k.decode)]
        (instance,) = [i for i in status.instances if i.name == name]
        return instance.state == "ready" and any(link.state == "warm" for link in links)

    def all_warm(self) -> bool:
        status = self.status()
        return all(i.state == "ready" for i in status.instances) and all(
            link.state == "warm" for link in status.links
        )

    def within(self, condition: Callable[[], object], limit_s: float) -> None:
        """As `until`, with a limit for whoever the machine does not keep waiting."""
        limit = Limit(limit_s)
        while not condition():
            assert not limit.over(), f"the condition did not come true within {limit_s} s"
            self.front.read()
            time.sleep(0.005)

    def hold(self, role: str) -> None:
        """No request gets on at the engines of that role. They speak, so that nobody takes them for dead."""
        for name, engine in self.engines.items():
            if name[0] == role:
                engine.behaviour.stall = lambda request: ":-1:" not in request.request_id

    def let_go(self) -> None:
        """All requests get on again."""
        for engine in self.engines.values():
            engine.behaviour.stall = lambda request: False

    def nothing_is_left(self) -> None:
        """Probes come and go; what is there now must be gone in two seconds, what was said into a hole as
        well. (Fakes have no leases.)"""
        held = set(self.store.held)
        running = {leg for engine in self.engines.values() for leg in list(engine.running)}

        def left() -> tuple[list[str], list[str]]:
            now = {leg for engine in self.engines.values() for leg in list(engine.running)}
            return sorted(held & set(self.store.held)), sorted(running & now)

        with contextlib.suppress(AssertionError):
            self.within(lambda: left() == ([], []), 2.0 + SLACK_S)
        assert left() == ([], []), "handles and legs that stay"
        self.until(lambda: self.status().totals.in_flight == 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Holes]:
    made = Holes(tmp_path, 2, 2, interval_s=INTERVAL_S)
    try:
        made.up()
        yield made
    finally:
        made.close()


def under_way(cluster: Holes, victim: str, phase: str) -> list[tuple[str, int]]:
    """Requests that are held in that phase, as (id, tokens asked for); the victim has work of every one's
    kind."""
    if phase == "idle":
        return []
    if phase == "mid-stream":
        asked = [(cluster.front.add(PROMPT, max_tokens=400), 400) for _ in range(4)]
        cluster.until(lambda: all(len(cluster.front.tokens(name)) > 3 for name, _ in asked))
        cluster.hold("d")
        return asked
    held = [e for n, e in cluster.engines.items() if n[0] == victim[0]]
    cluster.hold(victim[0])
    # With log-probabilities no token goes ahead of decode's.
    asked = [(cluster.front.add(PROMPT, max_tokens=12, logprobs=1), 12) for _ in range(4)]
    cluster.until(
        lambda: all(
            any(leg.endswith(f":{name}") for engine in held for leg in list(engine.running))
            for name, _ in asked
        )
    )
    return asked


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["p0", "d0"], ids=["prefill core", "decode core"])
def test_e02_a_black_hole_is_told_in_time_and_every_request_is_answered(
    cluster: Holes, victim: str, phase: str
) -> None:
    asked = under_way(cluster, victim, phase)
    generation = cluster.instance(victim).generation
    cluster.engine(victim).black_hole()
    begun = time.monotonic()
    cluster.let_go()
    cluster.within(lambda: not cluster.used(victim), LIMIT_S + 1 + SLACK_S)
    told_s = time.monotonic() - begun
    for name, count in asked:
        assert cluster.front.finish(name, PATIENCE_S) == continuation(PROMPT, count)
        assert cluster.front.finish_reason(name) == wire.LENGTH
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    cluster.engine(victim).heal()
    cluster.until(cluster.all_warm, PATIENCE_S)
    assert cluster.instance(victim).generation == generation, "it is the same engine"
    cluster.nothing_is_left()
    if ("reset_prefix_cache", [True]) not in cluster.engine(victim).utilities:
        # A probe's salt is its own: what it reads too late answers nobody else.
        assert [leg for leg in cluster.store.misread if ":-1:" not in leg] == []
    for _ in range(4):
        assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    assert any(victim in line for line in cluster.events()), told_s


def test_what_decode_reads_too_late_when_its_hole_heals_answers_no_other_request(
    cluster: Holes,
) -> None:
    """Its handles have been given back through the other one by then."""
    d0 = cluster.engine("d0")
    d0.black_hole()
    asked = [cluster.front.add(PROMPT, max_tokens=12, logprobs=1) for _ in range(4)]
    for name in asked:
        assert cluster.front.finish(name, PATIENCE_S) == continuation(PROMPT, 12)
    cluster.until(lambda: cluster.instance("d0").state == "dead", PATIENCE_S)
    assert ("reset_prefix_cache", [True]) not in d0.utilities
    d0.heal()
    cluster.until(lambda: "d0: its prefix cache is empty" in cluster.events(), PATIENCE_S)
    assert "d0: takes no new requests until its prefix cache is empty" in cluster.events()
    assert ("reset_prefix_cache", [True]) in d0.utilities
    cluster.until(cluster.all_warm, PATIENCE_S)
    for _ in range(4):
        assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    cluster.nothing_is_left()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["p0", "d0"], ids=["prefill core", "decode core"])
def test_connections_that_are_reset_are_made_again_and_every_request_is_answered(
    cluster: Holes, victim: str, phase: str
) -> None:
    asked = under_way(cluster, victim, phase)
    generation = cluster.instance(victim).generation
    cluster.engine(victim).reset()
    cluster.let_go()
    for name, count in asked:
        assert cluster.front.finish(name, PATIENCE_S) == continuation(PROMPT, count)
    cluster.until(cluster.all_warm, PATIENCE_S)
    assert cluster.instance(victim).generation == generation
    cluster.nothing_is_left()
    assert cluster.store.misread == []
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_e02_a_black_hole_of_the_last_decode_engine_ends_in_errors_and_heals(
    tmp_path: Path,
) -> None:
    cluster = Holes(tmp_path, 1, 1, interval_s=INTERVAL_S)
    try:
        cluster.up()
        asked = under_way(cluster, "d0", "mid-stream")
        cluster.engine("d0").black_hole()
        cluster.let_go()
        for name, _ in asked:
            tokens = cluster.front.finish(name, PATIENCE_S)
            assert cluster.front.finish_reason(name) == wire.ERROR
            assert tokens == continuation(PROMPT, len(tokens))
        refused = cluster.front.add(PROMPT)
        cluster.within(
            lambda: cluster.front.finish_reason(refused) is not None, LIMIT_S + 1 + SLACK_S
        )
        assert cluster.front.finish_reason(refused) == wire.ERROR
        cluster.engine("d0").heal()
        cluster.until(cluster.all_warm, PATIENCE_S)
        cluster.nothing_is_left()
        assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
        added = [r.request_id for r in cluster.engine("d0").added]
        assert len(added) == len(set(added)), "nothing was sent twice"
    finally:
        cluster.close()
