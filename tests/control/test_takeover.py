"""A controller that ends without a word, and the one after it: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Callable
from functools import partial

import pytest

from fakes.cluster import Cluster
from fakes.engine import continuation
from fakes.front import FakeFront
from vdisagg.cluster.leftovers import JOURNAL_FILE
from vdisagg.control import entries, wire
from vdisagg.control.controller import Controller
from vdisagg.control.recall import recall

Clusters = Callable[..., Cluster]
PROMPT = list(range(40))


def end(cluster: Cluster) -> None:
    """The controller goes. (Its sockets close, as after kill -9; it writes nothing more.)"""
    cluster.controller.stop()
    cluster._thread.join()


def begin(cluster: Cluster) -> None:
    """The next one, as its guard would start it."""
    cluster.controller = Controller(cluster.plan, cluster.directory, rng=random.Random(1))
    cluster._thread = threading.Thread(target=cluster.controller.run, daemon=True)
    cluster._thread.start()


def slow(cluster: Cluster, step_s: float = 0.02) -> None:
    for engine in cluster.engines.values():
        engine.behaviour.step_s = step_s


def hold(cluster: Cluster, most_tokens: float) -> None:
    """No leg gets further than so many tokens."""
    for engine in cluster.engines.values():
        engine.behaviour.most_tokens = lambda request: most_tokens


@pytest.mark.parametrize("deaths", [1, 3])
def test_streams_go_on_token_for_token(cluster_of: Clusters, deaths: int) -> None:
    cluster = cluster_of(2, 2).up()
    hold(cluster, 20)
    prompts = [[*PROMPT, n] for n in range(8)]
    requests = [cluster.front.add(prompt, max_tokens=80) for prompt in prompts]

    def tokens() -> int:
        return sum(len(cluster.front.tokens(r)) for r in requests)

    for _ in range(deaths):
        wanted = tokens() + 60
        cluster.until(partial(lambda least: tokens() > least, wanted))
        end(cluster)
        begin(cluster)
    hold(cluster, math.inf)
    for request, prompt in zip(requests, prompts, strict=True):
        assert cluster.front.finish(request) == continuation(prompt, 80)
        assert cluster.front.finish_reason(request) == wire.LENGTH
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    assert {i.generation for i in cluster.status().instances} == {1}, "the same engines"
    cluster.settle()
    cluster.until(lambda: {e.blocks_used for e in cluster.engines.values()} == {0})
    assert cluster.store.misread == []


def test_what_prefill_was_at_is_begun_again_and_its_old_handle_given_back(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    cluster.engines["p0"].behaviour.frozen = True
    request = cluster.front.add(PROMPT)
    cluster.until(lambda: cluster.engines["p0"].running)
    end(cluster)
    cluster.engines["p0"].behaviour.frozen = False
    begin(cluster)
    assert cluster.front.finish(request) == continuation(PROMPT, 16)
    cluster.settle()
    cluster.until(lambda: cluster.store.held == {})
    assert cluster.store.misread == []


@pytest.mark.parametrize("lost", ["prefill's output", "decode's request"])
def test_blocks_whose_handle_went_down_with_the_controller_are_given_back(
    cluster_of: Clusters, lost: str
) -> None:
    cluster = cluster_of(2, 2).up()
    for name, engine in cluster.engines.items():
        engine.behaviour.mute = lost == "prefill's output" and name[0] == "p"
        engine.behaviour.deaf = lost == "decode's request" and name[0] == "d"
    prompts = [[*PROMPT, n] for n in range(4)]
    requests = [cluster.front.add(prompt) for prompt in prompts]
    cluster.until(lambda: len(cluster.store.held) == 4)
    if lost == "decode's request":
        cluster.until(lambda: cluster.status().totals.handles_held == 4)
    end(cluster)
    for engine in cluster.engines.values():
        engine.behaviour.mute = engine.behaviour.deaf = False
    begin(cluster)
    for request, prompt in zip(requests, prompts, strict=True):
        assert cluster.front.finish(request) == continuation(prompt, 16)
    cluster.until(lambda: cluster.store.held == {})
    assert cluster.store.misread == []


def test_a_restarted_engine_has_a_sample_of_its_own(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()

    def sample() -> bytes | None:
        journal = entries.read(cluster.directory / JOURNAL_FILE)
        return recall(entry for _, entry in journal).samples.get("p0")

    first = sample()
    assert first is not None
    cluster.engines["p0"].kill()
    cluster.launch("p0")
    cluster.until(lambda: cluster.instance("p0").generation == 2)
    cluster.until(lambda: all(link.state == "warm" for link in cluster.status().links))
    assert sample() not in (None, first)


def test_an_answer_that_cannot_be_continued_ends_in_an_error(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    hold(cluster, 9)
    request = cluster.front.add(PROMPT, max_tokens=200, seed=3, temperature=0.7)
    cluster.until(lambda: len(cluster.front.tokens(request)) > 3)
    end(cluster)
    begin(cluster)
    cluster.front.finish(request)
    assert cluster.front.finish_reason(request) == wire.ERROR
    assert any("not to be continued" in line for line in cluster.events())


def test_a_request_and_an_abort_that_come_while_nobody_is_there_arrive(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    slow(cluster)
    left = cluster.front.add(PROMPT, max_tokens=10_000)
    cluster.until(lambda: len(cluster.front.tokens(left)) > 3)
    end(cluster)
    starter = threading.Timer(0.3, begin, [cluster])
    starter.start()
    cluster.front.abort(left)
    late = cluster.front.add(PROMPT, max_tokens=5)
    assert cluster.front.finish(late) == continuation(PROMPT, 5)
    starter.join()
    cluster.settle()
    assert len(cluster.front.tokens(left)) < 10_000


def test_a_front_end_that_has_gone_meanwhile_is_given_up_and_the_next_one_dialled(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    slow(cluster)
    cluster.front.add(PROMPT, max_tokens=10_000)
    cluster.until(lambda: cluster.engines["d0"].running)
    end(cluster)
    cluster.front.close()
    begin(cluster)
    cluster.front = FakeFront(cluster.plan.front_end.handshake)
    cluster.front.attach()
    slow(cluster, 0.0)
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    cluster.until(lambda: not cluster.engines["d0"].running)


def test_an_engine_whose_ready_payload_died_with_the_controller_is_taken_up(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of(1, 2).up()
    end(cluster)
    file = cluster.directory / "controller.json"
    saved = json.loads(file.read_text())
    saved["instances"]["d1"] |= {"ready": None, "state": "connected"}
    saved["links"] = [link for link in saved["links"] if "d1" not in link]
    file.write_text(json.dumps(saved))
    begin(cluster)
    cluster.until(lambda: cluster.instance("d1").state == "ready")
    cluster.until(lambda: all(link.state == "warm" for link in cluster.status().links))
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_what_another_run_has_left_is_not_taken_up(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    end(cluster)
    cluster.controller = Controller(
        cluster.plan, cluster.directory, rng=random.Random(1), since=5.0
    )
    cluster._thread = threading.Thread(target=cluster.controller.run, daemon=True)
    cluster._thread.start()
    assert {i.state for i in cluster.status().instances} == {"planned"}
    assert any("another run" in line for line in cluster.events())
