"""Two prefill and two decode engines of which one dies: its pairs prove themselves before they carry anything
again, and the others notice nothing (B07, E05)."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from real.conftest import RealCluster, cluster_at, running
from real.cores import core
from real.reference import Question, Reference, ask, question
from vdisagg.cluster import admin

pytestmark = pytest.mark.real

RESTART_S = 600.0
EACH = 20
"""Requests that each pair has to carry."""
AT_ONCE = 6


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """2P2D; links are hardly ever probed, so that what they carry is users' requests."""
    cluster = cluster_at(
        tmp_path_factory.mktemp("pairs"),
        "pairs",
        "tiny",
        prefill={"node": "here", "count": 2},
        decode={"node": "here", "count": 2},
        heartbeat={"interval_s": 60, "misses": 3},
    )
    yield from running(cluster)


@pytest.fixture(scope="module")
def reference(plain_tiny: str) -> Reference:
    """Right answers."""
    return Reference(plain_tiny)


def links(status: admin.ControllerStatus) -> dict[str, admin.LinkStatus]:
    """By name, such as p0→d1."""
    return {f"{link.prefill}→{link.decode}": link for link in status.links}


def whole(status: admin.ControllerStatus) -> bool:
    """Whether all is as after `up`."""
    return {i.state for i in status.instances} | {k.state for k in status.links} == {
        "ready",
        "warm",
    }


@contextmanager
def asked_meanwhile(cluster: RealCluster, reference: Reference) -> Iterator[list[str]]:
    """One request after the other for as long as the block lasts; afterwards the list says what was wrong."""
    over = threading.Event()
    wrong: list[str] = []
    questions = [question(200 + 40 * number, 6, f"meanwhile {number}") for number in range(8)]
    for asked in questions:
        reference.right(asked)

    def on() -> None:
        number = 0
        while not over.is_set():
            asked = questions[number % len(questions)]
            number += 1
            status, tokens = ask(cluster.url, cluster.model, asked)
            what = f"status {status}" if status != 200 else reference.wrong(asked, tokens)
            if what:
                wrong.append(f"{number}: {what}")
            over.wait(0.3)

    thread = threading.Thread(target=on)
    thread.start()
    try:
        yield wrong
    finally:
        over.set()
        thread.join()


def carried_while_not_warm(samples: list[admin.ControllerStatus], name: str) -> set[int]:
    """How many transfers a link had counted, at all the moments when it was not to be used."""
    found = [links(sample)[name] for sample in samples]
    return {link.transfers for link in found if link.state != "warm"}


def killed(cluster: RealCluster, instance: str) -> list[admin.ControllerStatus]:
    """kill -9 of an instance's engine core; what status says until all is well again."""
    samples: list[admin.ControllerStatus] = []
    generation = cluster.instance(instance).generation
    os.kill(core(cluster, instance), signal.SIGKILL)
    cluster.until(lambda s: not whole(s), "sign of the death", patience_s=5)

    def looked() -> admin.ControllerStatus:
        samples.append(cluster.status())
        return samples[-1]

    cluster.until(whole, "recovery", patience_s=RESTART_S, ask=looked)
    assert cluster.instance(instance).generation == generation + 1
    return samples


def test_e05_of_two_prefill_engines_one_is_killed_and_the_others_pairs_notice_nothing(
    pairs: RealCluster, reference: Reference
) -> None:
    before = links(pairs.status())
    with asked_meanwhile(pairs, reference) as wrong:
        samples = killed(pairs, "p0")
    assert not wrong, wrong
    for sample in samples:
        others = {i.name: (i.state, i.generation) for i in sample.instances if i.name != "p0"}
        assert set(others.values()) == {("ready", 1)}, others
        for name in ("p1→d0", "p1→d1"):
            link = links(sample)[name]
            assert (link.state, link.since) == ("warm", before[name].since), link
            assert (link.missed, link.failures, link.mismatches) == (0, 0, 0), link
    for name in ("p0→d0", "p0→d1"):
        assert len(carried_while_not_warm(samples, name)) == 1, name


def test_b07_a_decode_engine_is_replaced_at_its_address_and_each_pair_is_right(
    pairs: RealCluster, reference: Reference
) -> None:
    with asked_meanwhile(pairs, reference) as wrong:
        samples = killed(pairs, "d0")
    assert not wrong, wrong
    for name in ("p0→d0", "p1→d0"):
        assert len(carried_while_not_warm(samples, name)) == 1, (
            f"{name} carried something between its engine's death and its proof"
        )
        assert {links(s)[name].state for s in samples} >= {"cold", "warm"}

    before = {name: link.transfers for name, link in links(pairs.status()).items()}
    rng = random.Random(7)
    asked: list[Question] = []

    def carried() -> dict[str, int]:
        return {name: link.transfers - before[name] for name, link in links(pairs.status()).items()}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Pairs are chosen by what is in flight: of many lengths, so that all combinations come up.
        while min(carried().values()) < EACH:
            assert len(asked) < 20 * EACH, carried()
            batch = [
                question(rng.randrange(20, 600), rng.choice((2, 6, 20)), len(asked) + n)
                for n in range(2 * AT_ONCE)
            ]
            answers = list(pool.map(lambda one: ask(pairs.url, pairs.model, one), batch))
            asked += batch
            assert {status for status, _ in answers} == {200}
            for one, (_, tokens) in zip(batch, answers, strict=True):
                assert not reference.wrong(one, tokens)
    print(carried(), len(asked))
    status = pairs.status()
    assert whole(status)
    assert {(k.mismatches, k.missed) for k in status.links} == {(0, 0)}
