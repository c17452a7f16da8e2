"""C01: loads don't drift, whatever becomes of requests, so that work is spread evenly."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from fakes.cluster import Cluster
from fakes.engine import continuation

Clusters = Callable[..., Cluster]
DECODE = ("d0", "d1", "d2")
FAILING = 60.5
"""A temperature that says: whoever gets this request fails it."""


@pytest.fixture
def cluster(cluster_of: Clusters) -> Cluster:
    """One prefill and three decode engines."""
    cluster = cluster_of(1, 3).up()
    for engine in cluster.engines.values():
        engine.behaviour.fail = lambda r: (r.sampling_params or {}).get("temperature") == FAILING
    return cluster


def answered(cluster: Cluster) -> dict[str, int]:
    """Users' decode legs that each engine has been given."""
    legs = {
        name: [r.request_id for r in cluster.engines[name].added if r.request_id[0] == "d"]
        for name in DECODE
    }
    return {name: sum(":-1:" not in leg for leg in of) for name, of in legs.items()}


def loads(cluster: Cluster) -> dict[str, int]:
    """Legs in flight by instance."""
    return {i.name: i.in_flight for i in cluster.status().instances}


def at_most(cluster: Cluster, count: int, open_ones: list[str]) -> None:
    """Wait until no more than `count` of these requests have not ended."""

    def few() -> bool:
        open_ones[:] = [name for name in open_ones if cluster.front.finish_reason(name) is None]
        return len(open_ones) <= count

    cluster.until(few)


def plain(cluster: Cluster, lengths: Sequence[tuple[int, int]], *, at_once: int) -> None:
    """Requests of these lengths (prompt, answer), so many at a time; each is answered rightly.

    The older half of them ends before others come, however fast each engine is: one that stalls would
    else be given less.
    """
    asked: dict[str, tuple[list[int], int]] = {}
    open_ones: list[str] = []
    ending: set[str] = set()
    for name in DECODE:
        cluster.engines[name].behaviour.most_tokens = lambda request: (
            1 if request.request_id.rpartition(":")[2] in asked.keys() - ending else math.inf
        )
    for number, (length, answer) in enumerate(lengths):
        if len(open_ones) == at_once:
            ending.update(open_ones[: at_once // 2])
            at_most(cluster, at_once - at_once // 2, open_ones)
        prompt = [number, *range(length)]
        name = cluster.front.add(prompt, max_tokens=answer)
        asked[name] = (prompt, answer)
        open_ones.append(name)
    ending.update(open_ones)
    at_most(cluster, 0, open_ones)
    for name, (prompt, answer) in asked.items():
        assert cluster.front.tokens(name) == continuation(prompt, answer)


def troubled(cluster: Cluster, rng: random.Random, count: int) -> Counter[str]:
    """Requests of which half are cancelled at random moments of their lives, and one in twenty fails."""
    open_ones: list[str] = []
    ends: Counter[str] = Counter()
    victims: list[str] = []
    for number in range(count):
        at_most(cluster, 40, open_ones)
        fails = number % 20 == 7
        temperature = FAILING if fails else 0.0
        answer = rng.choice((1, 2, 5, 30))
        name = cluster.front.add(
            [number, *range(rng.randrange(1, 60))], max_tokens=answer, temperature=temperature
        )
        open_ones.append(name)
        ends["failing"] += fails
        if number % 2:
            victims.append(name)
        # Some at once, others when they are held, prefilled, decoded, or over.
        while victims and rng.random() < 0.5:
            victim = victims.pop(rng.randrange(len(victims)))
            ends["cancelled"] += cluster.front.finish_reason(victim) is None
            cluster.front.abort(victim)
            if victim in open_ones:
                open_ones.remove(victim)
        cluster.front.read()
    for victim in victims:
        ends["cancelled"] += cluster.front.finish_reason(victim) is None
        cluster.front.abort(victim)
        if victim in open_ones:
            open_ones.remove(victim)
    at_most(cluster, 0, open_ones)
    return ends


@pytest.mark.parametrize("kind", ["even", "uneven"])
def test_c01_after_cancelled_and_failed_requests_loads_are_zero_and_work_is_even(
    cluster: Cluster, kind: str
) -> None:
    rng = random.Random(kind)
    for engine in cluster.engines.values():
        engine.behaviour.step_s = 0.001
    ends = troubled(cluster, rng, 600)
    assert ends["failing"] == 30
    assert ends["cancelled"] > 150, "too few were cut short to mean anything"
    cluster.settle()
    # A failed transfer is followed by a probe of its link, which is load as well while it runs.
    cluster.until(lambda: set(loads(cluster).values()) == {0})
    totals = cluster.status().totals
    assert totals.finished + totals.failed + totals.aborted == totals.received == 600
    assert totals.handles_held == 0

    before = answered(cluster)
    lengths = [(30, 4)] * 300
    if kind == "uneven":
        lengths = [(rng.randrange(1, 80), rng.randrange(2, 13)) for _ in range(300)]
    plain(cluster, lengths, at_once=24)
    shares = [count - before[name] for name, count in answered(cluster).items()]
    assert sum(shares) == 300
    assert all(90 <= share <= 110 for share in shares), shares
    cluster.settle()
    # A failed transfer is followed by a probe of its link, which is load as well while it runs.
    cluster.until(lambda: set(loads(cluster).values()) == {0})


def test_c01_a_restarted_decode_engine_is_given_no_more_than_the_others_have(
    cluster: Cluster,
) -> None:
    """Also not by a burst that is still being prefilled when its turn is decided."""
    cluster.engines["d1"].kill()
    cluster.until(lambda: cluster.instance("d1").state != "ready")
    for name in ("d0", "d2"):
        cluster.engines[name].behaviour.frozen = True
    held = [cluster.front.add([9, n, *range(20)], max_tokens=4) for n in range(20)]
    cluster.until(lambda: [loads(cluster)[name] for name in DECODE] == [10, 0, 10])
    cluster.launch("d1")
    cluster.until(lambda: ("d1", "warm") in [(k.decode, k.state) for k in cluster.status().links])
    cluster.engines["d1"].behaviour.frozen = True
    cluster.engines["p0"].behaviour.frozen = True
    burst = [cluster.front.add([8, n, *range(20)], max_tokens=4) for n in range(40)]
    cluster.until(lambda: loads(cluster)["p0"] == 40)
    cluster.engines["p0"].behaviour.frozen = False
    cluster.until(lambda: sum(loads(cluster)[name] for name in DECODE) == 60)
    now = [loads(cluster)[name] for name in DECODE]
    assert all(19 <= load <= 21 for load in now), now
    for name in DECODE:
        cluster.engines[name].behaviour.frozen = False
    for head, requests in ((9, held), (8, burst)):
        for number, request in enumerate(requests):
            assert cluster.front.finish(request) == continuation([head, number, *range(20)], 4)
