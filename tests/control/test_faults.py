"""What goes wrong around the controller: aborts, deaths and lies of engines, a front end that leaves."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

import pytest
import zmq

from fakes.cluster import Cluster
from fakes.engine import continuation
from fakes.front import PATIENCE_S, FakeFront
from vdisagg.control import wire

Clusters = Callable[..., Cluster]
PROMPT = list(range(40))


def test_b01_an_abort_during_prefill_reaches_prefill_only(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["p0"].behaviour.frozen = True
    decoded = len(cluster.engines["d0"].added)
    request = cluster.front.add(PROMPT)
    cluster.until(lambda: cluster.engines["p0"].running)
    cluster.front.abort(request)
    cluster.until(lambda: cluster.engines["p0"].aborted)
    cluster.engines["p0"].behaviour.frozen = False
    cluster.settle()
    assert cluster.engines["p0"].blocks_used == 0
    assert len(cluster.engines["d0"].added) == decoded
    assert cluster.status().totals.aborted == 1


def test_b01_an_abort_that_crosses_prefills_answer_releases_the_handle_once(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    prefill = cluster.engines["p0"]
    stepping, told = threading.Event(), threading.Event()

    def step(_: wire.AddRequest) -> bool:
        """The abort arrives while the step that finishes is under way."""
        stepping.set()
        return not told.wait(PATIENCE_S)

    prefill.behaviour.fail = step
    request = cluster.front.add(PROMPT)
    cluster.until(stepping.is_set)
    cluster.front.abort(request)
    cluster.until(lambda: cluster.status().totals.aborted == 1)
    told.set()
    cluster.until(lambda: cluster.store.released)
    cluster.settle()
    assert cluster.store.held == {}
    assert len(cluster.store.released) == 1
    assert cluster.store.misread == []
    # An idle decode engine has to step to tell prefill: one dummy request makes it.
    added = cluster.engines["d0"].added
    cluster.until(lambda: [r.request_id[:2] for r in added[-2:]] == ["r:", "n:"])


def test_b01_an_abort_before_decodes_first_token_aborts_and_nudges_decode(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    decode = cluster.engines["d0"]
    decode.behaviour.frozen = True
    request = cluster.front.add(PROMPT)
    cluster.until(lambda: decode.running)
    cluster.front.abort(request)
    cluster.until(lambda: decode.aborted)
    decode.behaviour.frozen = False
    cluster.settle()
    assert cluster.engines["p0"].aborted == []
    assert any(r.request_id.startswith("n:") for r in decode.added)
    assert cluster.front.tokens(request) == continuation(PROMPT, 1), "prefill's, and no other"


def test_b01_an_abort_in_the_middle_of_decoding_stops_it(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["d0"].behaviour.step_s = 0.01
    request = cluster.front.add(PROMPT, max_tokens=10_000)
    cluster.until(lambda: len(cluster.front.tokens(request)) > 3)
    cluster.front.abort(request)
    cluster.until(lambda: not cluster.engines["d0"].running)
    cluster.settle()


def test_b01_two_hundred_cuts_at_random_moments_leave_nothing(cluster_of: Clusters) -> None:
    cluster = cluster_of(2, 2).up()
    rng = random.Random(3)
    for engine in cluster.engines.values():
        engine.behaviour.step_s = 0.002
    live: list[str] = []
    for _ in range(200):
        live.append(cluster.front.add(PROMPT, max_tokens=50))
        cluster.front.read(rng.random() * 0.004)
        cluster.front.abort(live.pop(rng.randrange(len(live))))
    cluster.front.abort(*live)
    cluster.settle()
    cluster.until(lambda: cluster.store.held == {})
    # The last nudge may still be under way.
    cluster.until(lambda: {e.blocks_used for e in cluster.engines.values()} == {0})
    assert cluster.store.misread == []
    assert {i.in_flight for i in cluster.status().instances} == {0}


def test_an_abort_of_an_id_that_has_ended_is_ignored(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    request = cluster.front.add(PROMPT)
    cluster.front.finish(request)
    cluster.front.abort(request, "never-heard-of")
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    assert cluster.engines["p0"].aborted == cluster.engines["d0"].aborted == []


def test_c04_a_request_that_both_engines_refuse_ends_in_an_error_at_once(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    for engine in cluster.engines.values():
        engine.behaviour.fail = lambda request: True
    request = cluster.front.add(PROMPT)
    assert cluster.front.finish(request) == []
    assert cluster.front.finish_reason(request) == wire.ERROR
    assert f"request: {request}: d0 ended the whole leg with an error" in cluster.events()
    assert not any("as soon as there is a way" in line for line in cluster.events())
    assert cluster.engines["d0"].running == {}
    for engine in cluster.engines.values():
        engine.behaviour.fail = lambda request: False
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_c04_every_second_failure_of_prefill_is_made_good(cluster_of: Clusters) -> None:
    cluster = cluster_of(2, 1).up()
    refused = iter(range(10_000))
    for name in ("p0", "p1"):
        cluster.engines[name].behaviour.fail = lambda request: next(refused) % 2 == 0
    for _ in range(10):
        assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    totals = cluster.status().totals
    assert (totals.failed, totals.in_flight) == (0, 0)
    assert totals.redone >= 5


def test_a_prefill_leg_without_a_handle_is_begun_again_and_said(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["p0"].behaviour.lose_handle = True
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    assert any("without a handle; begun again on d0" in line for line in cluster.events())


@pytest.mark.parametrize("notice", [True, False], ids=["death notice", "kill -9"])
def test_b03_with_prefill_dead_decode_computes_what_was_under_way_and_what_comes(
    cluster_of: Clusters, notice: bool
) -> None:
    cluster = cluster_of().up()
    cluster.engines["p0"].behaviour.frozen = True
    requests = [cluster.front.add(PROMPT) for _ in range(5)]
    cluster.until(lambda: len(cluster.engines["p0"].running) == 5)
    cluster.engines["p0"].die() if notice else cluster.engines["p0"].kill()
    for request in requests:
        assert cluster.front.finish(request) == continuation(PROMPT, 16)
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    cluster.until(lambda: [h is not None and h.ok for h in cluster.front.health] == [False])
    assert cluster.status().totals.alone == 6


@pytest.mark.parametrize("notice", [True, False], ids=["death notice", "kill -9"])
def test_c05_with_the_only_decode_engine_dead_requests_end_in_an_error(
    cluster_of: Clusters, notice: bool
) -> None:
    cluster = cluster_of().up()
    cluster.engines["d0"].behaviour.frozen = True
    requests = [cluster.front.add(PROMPT) for _ in range(5)]
    cluster.until(lambda: len(cluster.engines["d0"].running) == 5)
    cluster.engines["d0"].die() if notice else cluster.engines["d0"].kill()
    for request in requests:
        # A lost connection may come back, so they wait for as long as the engine is suspect.
        cluster.front.finish(request)
        assert cluster.front.finish_reason(request) == wire.ERROR
    assert cluster.instance("d0").state == "dead"
    assert cluster.status().totals.in_flight == 0
    refused = cluster.front.add(PROMPT)
    cluster.front.finish(refused)
    assert cluster.front.finish_reason(refused) == wire.ERROR
    nowhere = "no working link between a prefill and a decode instance"
    assert f"request: {refused}: {nowhere}" in cluster.events(), "and it has not waited for one"
    cluster.until(lambda: [h is not None and h.ok for h in cluster.front.health] == [False])


def test_c05_streams_on_a_dead_decode_engine_go_on_on_another_token_for_token(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of(1, 2).up()
    for name in ("d0", "d1"):
        cluster.engines[name].behaviour.most_tokens = lambda request: 4
    requests = [cluster.front.add(PROMPT, max_tokens=60) for _ in range(6)]
    seeded = cluster.front.add(PROMPT, max_tokens=60, seed=3, temperature=0.5)
    cluster.until(lambda: all(len(cluster.front.tokens(r)) > 3 for r in (*requests, seeded)))
    victim = next(
        n for n in ("d0", "d1") if any(r.endswith(seeded) for r in cluster.engines[n].running)
    )
    moved = sum(not r.endswith(seeded) for r in cluster.engines[victim].running)
    cluster.engines[victim].kill()
    for name in {"d0", "d1"} - {victim}:
        cluster.engines[name].behaviour.most_tokens = lambda request: math.inf
    for request in requests:
        assert cluster.front.finish(request) == continuation(PROMPT, 60)
        assert cluster.front.finish_reason(request) == wire.LENGTH
    cluster.front.finish(seeded)
    assert cluster.front.finish_reason(seeded) == wire.ERROR, "its generator cannot be wound on"
    totals = cluster.status().totals
    assert (totals.continued, totals.failed) == (moved, 1)
    assert moved >= 1


def test_a_request_whose_decode_engine_dies_during_prefill_goes_to_another(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of(1, 2).up()
    cluster.engines["p0"].behaviour.frozen = True
    requests = [cluster.front.add(PROMPT) for _ in range(4)]
    cluster.until(lambda: len(cluster.engines["p0"].running) == 4)
    cluster.engines["d0"].kill()
    cluster.until(lambda: cluster.instance("d0").state != "ready")
    cluster.engines["p0"].behaviour.frozen = False
    for request in requests:
        assert cluster.front.finish(request) == continuation(PROMPT, 16)


def test_a_loading_engine_gets_no_request(cluster_of: Clusters) -> None:
    cluster = cluster_of(1, 2)
    cluster.launch("p0")
    cluster.launch("d0")
    cluster.front.attach()
    for _ in range(6):
        assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    assert cluster.instance("d1").state == "planned"
    assert cluster.instance("d1").in_flight == 0


def test_a_restarted_engine_is_a_new_generation_and_serves_again(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["d0"].kill()
    cluster.until(lambda: cluster.instance("d0").state != "ready")
    cluster.launch("d0")
    cluster.until(lambda: all(link.state == "warm" for link in cluster.status().links))
    assert cluster.instance("d0").generation == 2
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_an_unknown_vllm_is_refused_by_name(cluster_of: Clusters) -> None:
    cluster = cluster_of()
    cluster.launch("p0", version="0.99.1")
    cluster.until(lambda: cluster.instance("p0").state == "dead")
    reason = cluster.instance("p0").reason
    assert "0.99.1" in reason
    assert all(version in reason for version in wire.KNOWN_VERSIONS)


def test_a_decode_engine_that_reads_garbage_never_becomes_usable(cluster_of: Clusters) -> None:
    cluster = cluster_of(1, 2)
    cluster.launch("p0")
    cluster.launch("d0", corrupt=True)
    cluster.launch("d1")
    cluster.front.attach()
    cluster.until(lambda: {link.state for link in cluster.status().links} == {"down", "warm"})
    down = next(link for link in cluster.status().links if link.state == "down")
    assert (down.decode, down.mismatches) == ("d0", 1)
    assert "alone" in down.reason
    for _ in range(4):
        assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_idle_links_are_probed_and_users_do_not_see_it(cluster_of: Clusters) -> None:
    cluster = cluster_of(interval_s=0.2, misses=60).up()
    beats = cluster.status().links[0].transfers
    cluster.until(lambda: cluster.status().links[0].transfers > beats + 5)
    totals = cluster.status().totals
    assert (totals.received, totals.finished, totals.output_tokens) == (0, 0, 0)
    assert cluster.front.received == {}

    def probes(name: str) -> list[wire.AddRequest]:
        """Without the nudges and releases that follow one which took too long."""
        return [r for r in cluster.engines[name].added if r.request_id[0] not in "nr"]

    answers = {(r.sampling_params or {}).get("max_tokens") for r in probes("d0")}
    assert answers == {cluster.plan.heartbeat.canary_tokens, 2}, "a proof, then beats"
    salts = [r.cache_salt for r in probes("p0")]
    assert None not in salts
    assert len(salts) == len(set(salts)), "a prefix cache must not hide the transfer"


def test_a_hung_decode_engine_makes_its_links_stale_and_they_heal(cluster_of: Clusters) -> None:
    cluster = cluster_of(interval_s=0.1, misses=60).up()
    cluster.engines["d0"].behaviour.frozen = True
    cluster.until(lambda: cluster.status().links[0].state == "stale")
    assert "probes missed" in cluster.status().links[0].reason
    cluster.engines["d0"].behaviour.frozen = False
    cluster.until(lambda: cluster.status().links[0].state == "warm")
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_a_front_end_that_leaves_takes_its_requests_along_and_another_may_come(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    cluster.engines["d0"].behaviour.step_s = 0.02
    for _ in range(3):
        cluster.front.add(PROMPT, max_tokens=10_000)
    cluster.until(lambda: len(cluster.engines["d0"].running) == 3)
    cluster.front.close()
    cluster.front = FakeFront(cluster.plan.front_end.handshake)
    cluster.front.attach()
    cluster.until(lambda: not cluster.engines["d0"].running)
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    assert cluster.status().totals.aborted == 3


def test_a_utility_call_fails_by_name_where_an_engine_dies_under_it(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["d0"].kill()
    cluster.until(lambda: cluster.instance("d0").state != "ready")
    cluster.engines["p0"].kill()
    cluster.until(lambda: cluster.instance("p0").state != "ready")
    answer = cluster.front.call(3, "get_supported_tasks")
    assert answer.failure_message == "no engine is ready"


def test_an_add_that_cannot_be_read_ends_in_an_error_and_no_hang(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.front.send_raw(wire.ADD, wire.encode(["odd", "not token ids", None, 7]))
    cluster.until(lambda: cluster.front.finish_reason("odd") == wire.ERROR)
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


@pytest.mark.parametrize("frames", [[b"\x00", b"\xc1"], [b"\x03", b"junk"], [b"\x01", b""], [b"x"]])
def test_junk_from_the_front_end_is_dropped_and_noted(
    cluster_of: Clusters, frames: list[bytes]
) -> None:
    cluster = cluster_of().up()
    cluster.front.send_raw(*frames)
    said = ("is not what vLLM", "frames, where 2 are due")
    cluster.until(
        lambda: any(
            line.startswith("front: ") and any(words in line for words in said)
            for line in cluster.events()
        )
    )
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


@pytest.mark.parametrize("frames", [[b"\xc1"], [b"a", b"b", b"c"], [b""]])
def test_junk_on_a_handshake_socket_ends_no_more_than_that_engine(
    cluster_of: Clusters, frames: list[bytes]
) -> None:
    cluster = cluster_of(1, 2).up()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(cluster.plan.instances[1].handshake.zmq)
    stranger.send_multipart(frames)
    cluster.until(lambda: cluster.instance("d0").state == "dead")
    stranger.close(linger=0)
    context.term()
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_a_front_end_whose_api_servers_are_slow_to_speak_is_not_taken_for_gone(
    cluster_of: Clusters,
) -> None:
    """Its parent listens for them, and connections that nobody answers are dropped and made again."""
    cluster = cluster_of()
    cluster.front.delay_inputs(drops=2)
    cluster.up()
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
    assert cluster.status().front_end == "attached"
    assert not any("gone" in line for line in cluster.events())
