"""A12: more requests than the KV caches hold: engines preempt, and every answer is right all the same."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from real.conftest import RealCluster, cluster_at, running
from real.reference import Reference, ask_at_once, question

pytestmark = pytest.mark.real

REQUESTS, LENGTH, ANSWER = 32, 512, 256
BLOCKS = 10
"""One of them is vLLM's null block, and a request takes six: one and a half requests fit."""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """1P1D with as good as no room for KV."""
    args = {
        "max_model_len": 1024,
        "dtype": "float32",
        "max_num_seqs": 32,
        "num_gpu_blocks_override": BLOCKS,
    }
    cluster = cluster_at(
        tmp_path_factory.mktemp("narrow"),
        "narrow",
        "tiny",
        engine={"args": args},
        # What is slow here is no fault of an engine's.
        heartbeat={"interval_s": 20, "misses": 3},
        timeouts={"handover_s": 120},
    )
    yield from running(cluster)


def preemptions(url: str) -> float:
    """By the front end's own count, which is of what decode engines tell it."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("vllm:num_preemptions_total")
    )


def test_a12_answers_under_pressure_for_kv_blocks_are_a_plain_engines(
    narrow: RealCluster, plain_tiny: str
) -> None:
    reference = Reference(plain_tiny)
    questions = [question(LENGTH, ANSWER, f"pressure {number}") for number in range(REQUESTS)]
    generations = [i.generation for i in narrow.status().instances]
    before = preemptions(narrow.url)

    answers = ask_at_once(narrow.url, narrow.model, questions)

    assert {status for status, _ in answers} == {200}
    wrong = [
        f"{number}: {what}"
        for number, (asked, (_, tokens)) in enumerate(zip(questions, answers, strict=True))
        if (what := reference.wrong(asked, tokens))
    ]
    assert not wrong, "\n".join(wrong)
    assert preemptions(narrow.url) > before, "nobody was preempted: this proves nothing"
    status = narrow.idle(30)
    assert {i.state for i in status.instances} == {"ready"}
    assert [i.generation for i in status.instances] == generations, "an engine has crashed"
