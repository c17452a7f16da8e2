"""Heartbeats don't lie and don't show: a busy engine stays up, and probes leave nothing behind (E05)."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from real.ask import post, random_prompt
from real.conftest import RealCluster, cluster_at, running
from real.reference import Question, ask
from vdisagg.cluster import admin
from vdisagg.errors import ControllerGone

pytestmark = pytest.mark.real

INTERVAL_S, MISSES = 2.0, 2
LIMIT_S = INTERVAL_S * MISSES
LONG = 8000
"""Tokens of a prompt, which prefill computes in pieces of CHUNK."""
CHUNK = 256
BUSY_S = 30.0
PROBES = 300


@dataclass
class Probed:
    """A cluster, and what its controller said of it while it was started."""

    cluster: RealCluster
    samples: list[admin.ControllerStatus]


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probed]:
    """1P1D with a short heartbeat, for prompts that take long."""
    args = {
        "max_model_len": 8192,
        "dtype": "float32",
        "max_num_seqs": 32,
        "max_num_batched_tokens": CHUNK,
        "num_gpu_blocks_override": 256,
    }
    cluster = cluster_at(
        tmp_path_factory.mktemp("probed"),
        "probed",
        "tiny",
        engine={"args": args},
        heartbeat={"interval_s": INTERVAL_S, "misses": MISSES},
        timeouts={"handover_s": 120},
    )
    samples: list[admin.ControllerStatus] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            try:
                samples.append(cluster.status())
            except ControllerGone:  # not there yet
                continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for up in running(cluster):
            over.set()
            thread.join()
            yield Probed(up, samples)
    finally:
        over.set()


def metrics(url: str) -> list[str]:
    """What the front end counts for its users."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return [line for line in lines if line.startswith("vllm:")]


def cached(cluster: RealCluster, prompt: list[int]) -> int:
    """How many of a prompt's tokens were in a cache, as the usage says."""
    body = Question(tuple(prompt), 2).body(cluster.model)
    status, reply = post(cluster.url, "/v1/completions", body)
    assert status == 200, reply
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def probe(cluster: RealCluster, count: int) -> None:
    """So many probes over the one link, one after the other."""
    sent = cluster.status().links[0].transfers
    for number in range(1, count + 1):
        admin.ask(cluster.state, admin.Done, "probe")
        cluster.until(lambda s, n=sent + number: s.links[0].transfers >= n, "beat")  # type: ignore[misc]


def test_e05_no_probe_is_sent_before_both_ends_are_ready(probed: Probed) -> None:
    early = 0
    for sample in probed.samples:
        ready = {i.state for i in sample.instances} == {"ready"}
        (link,) = sample.links
        if not ready:
            early += 1
            assert (link.state, link.transfers, link.missed, link.failures) == ("cold", 0, 0, 0)
            assert {i.in_flight for i in sample.instances} == {0}
    assert early > 10, "nobody looked while they were loading"
    events = admin.ask(probed.cluster.state, admin.Events, "events").events
    told = [f"{event.subject}: {event.what}" for event in events]
    warm = told.index("p0→d0: probing → warm")
    assert {"p0: connected → ready", "d0: connected → ready"} <= set(told[:warm])
    (link,) = probed.cluster.status().links
    assert (link.failures, link.mismatches) == (0, 0)


def test_e05_an_engine_that_computes_long_prompts_stays_up(probed: Probed) -> None:
    """For longer than the limit no probe gets through, and nothing of a user's goes over the link. The engine's
    steps are its beats."""
    cluster = probed.cluster
    last = admin.ask(cluster.state, admin.Events, "events").last
    before = cluster.status()
    deadline = time.monotonic() + BUSY_S
    asked = 0
    longest_wait_s = 0.0

    def one(number: int) -> int:
        prompt = tuple(random_prompt(LONG, f"long {number}"))
        status, _ = ask(cluster.url, cluster.model, Question(prompt, 1))
        return status

    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(one, number) for number in range(16)]
        asked = len(waiting)
        while waiting:
            for done in [w for w in waiting if w.done()]:
                waiting.remove(done)
                assert done.result() == 200
                if time.monotonic() < deadline:
                    waiting.append(pool.submit(one, asked))
                    asked += 1
            status = cluster.status()
            assert {i.state for i in status.instances} == {"ready"}, status
            assert {link.state for link in status.links} == {"warm"}, status
            beat = status.links[0].last_beat
            assert beat is not None
            longest_wait_s = max(longest_wait_s, time.time() - beat)
            time.sleep(0.05)
    print(f"{asked} prompts; longest time without a beat: {longest_wait_s:.1f} s")
    assert longest_wait_s > LIMIT_S, "it was not as busy as all that"
    events = admin.ask(cluster.state, admin.Events, "events", after=last).events
    # A machine that has no time for the controller either makes it say so.
    assert not [event for event in events if event.subject != "controller"], events
    after = cluster.status()
    assert [i.generation for i in after.instances] == [i.generation for i in before.instances]


def test_e05_three_hundred_probes_leave_no_block_and_no_trace(probed: Probed) -> None:
    cluster = probed.cluster
    base = cluster.idle()
    counted = metrics(cluster.url)
    probe(cluster, PROBES)
    assert metrics(cluster.url) == counted
    status = cluster.idle()
    assert status.totals == base.totals
    assert (status.links[0].failures, status.links[0].mismatches) == (base.links[0].failures, 0)
    assert cached(cluster, random_prompt(500, "fresh")) == 0


def test_e05_probes_leave_users_prompts_in_the_cache(probed: Probed) -> None:
    """As many as there are blocks, and more."""
    cluster = probed.cluster
    prompt = random_prompt(500, "kept")
    cached(cluster, prompt)
    kept = cached(cluster, prompt)
    assert kept > 0
    probe(cluster, PROBES)
    assert cached(cluster, prompt) == kept
