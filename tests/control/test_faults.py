"""What goes wrong around the controller: aborts, deaths and lies of engines, a front end that leaves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import zmq

from fakes.cluster import Cluster
from fakes.engine import continuation
from fakes.front import FakeFront
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
    prefill.behaviour.step_s = 0.3  # the abort arrives while the step that finishes is under way
    request = cluster.front.add(PROMPT)
    cluster.until(lambda: prefill.running)
    cluster.front.abort(request)
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


def test_c04_prefills_error_is_the_clients_and_decode_never_starts(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["p0"].behaviour.fail = lambda request: True
    decoded = len(cluster.engines["d0"].added)
    request = cluster.front.add(PROMPT)
    assert cluster.front.finish(request) == []
    assert cluster.front.finish_reason(request) == wire.ERROR
    assert len(cluster.engines["d0"].added) == decoded
    cluster.engines["p0"].behaviour.fail = lambda request: False
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_a_prefill_leg_without_a_handle_is_an_error_not_a_silent_recompute(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    cluster.engines["p0"].behaviour.lose_handle = True
    request = cluster.front.add(PROMPT)
    cluster.front.finish(request)
    assert cluster.front.finish_reason(request) == wire.ERROR
    assert any("without a handle" in line for line in cluster.events())


@pytest.mark.parametrize("notice", [True, False], ids=["death notice", "kill -9"])
@pytest.mark.parametrize("victim", ["p0", "d0"])
def test_c04_c05_a_dead_engines_requests_end_in_an_error_at_once(
    cluster_of: Clusters, victim: str, notice: bool
) -> None:
    cluster = cluster_of().up()
    cluster.engines[victim].behaviour.frozen = True
    requests = [cluster.front.add(PROMPT) for _ in range(5)]
    cluster.until(lambda: len(cluster.engines[victim].running) == 5)
    if notice:
        cluster.engines[victim].die()
    else:
        cluster.engines[victim].kill()
    for request in requests:
        cluster.front.finish(request, patience_s=2.0)
        assert cluster.front.finish_reason(request) == wire.ERROR
    assert cluster.instance(victim).state in ("dead", "suspect")
    assert cluster.status().totals.in_flight == 0
    refused = cluster.front.add(PROMPT)
    cluster.front.finish(refused, patience_s=2.0)
    assert cluster.front.finish_reason(refused) == wire.ERROR


def test_c05_a_stream_on_a_dead_decode_engine_ends_in_an_error(cluster_of: Clusters) -> None:
    cluster = cluster_of(1, 2).up()
    for name in ("d0", "d1"):
        cluster.engines[name].behaviour.step_s = 0.02
    requests = [cluster.front.add(PROMPT, max_tokens=100) for _ in range(6)]
    cluster.until(lambda: all(cluster.front.tokens(r) for r in requests))
    cluster.engines["d0"].kill()
    ends = []
    for request in requests:
        tokens = cluster.front.finish(request)
        ends.append(cluster.front.finish_reason(request))
        assert tokens == continuation(PROMPT, len(tokens))
    assert ends.count(wire.ERROR) == 3
    assert ends.count(wire.LENGTH) == 3
    for engine in cluster.engines.values():
        engine.behaviour.step_s = 0.0
    assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


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
    assert (down.decode, down.mismatches) == ("d0", 3)
    for _ in range(4):
        assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)


def test_idle_links_are_probed_and_users_do_not_see_it(cluster_of: Clusters) -> None:
    cluster = cluster_of(interval_s=0.05).up()
    beats = cluster.status().links[0].transfers
    cluster.until(lambda: cluster.status().links[0].transfers > beats + 5)
    totals = cluster.status().totals
    assert (totals.received, totals.finished, totals.output_tokens) == (0, 0, 0)
    assert cluster.front.received == {}
    answers = {(r.sampling_params or {}).get("max_tokens") for r in cluster.engines["d0"].added}
    assert answers == {cluster.plan.heartbeat.canary_tokens}
    salts = [r.cache_salt for r in cluster.engines["p0"].added]
    assert None not in salts
    assert len(salts) == len(set(salts)), "a prefix cache must not hide the transfer"


def test_a_hung_decode_engine_makes_its_links_stale_and_they_heal(cluster_of: Clusters) -> None:
    cluster = cluster_of(interval_s=0.1).up()
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
    cluster.until(lambda: any(line.startswith("front: a") for line in cluster.events()[2:]))
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
