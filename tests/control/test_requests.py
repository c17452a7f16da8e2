"""Requests through the whole control plane, with fake engines and a fake front end around it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from fakes.cluster import Cluster
from fakes.engine import BLOCK_SIZE, continuation
from vdisagg.control import wire

Clusters = Callable[..., Cluster]
B = BLOCK_SIZE


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length} {seed}")
    return [rng.randrange(1000) for _ in range(length)]


@pytest.mark.parametrize("length", [1, B - 1, B, B + 1, 2 * B, 5 * B + 3])
def test_a01_a03_tokens_equal_those_of_one_engine_and_no_block_stays(
    cluster_of: Clusters, length: int
) -> None:
    cluster = cluster_of().up()
    for seed in range(5):
        prompt = prompt_of(length, seed)
        assert cluster.front.generate(prompt, max_tokens=9) == continuation(prompt, 9)
    cluster.settle()
    assert cluster.store.held == {}
    assert cluster.store.misread == []
    assert {e.blocks_used for e in cluster.engines.values()} == {0}


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a04_exactly_max_tokens_come(cluster_of: Clusters, max_tokens: int) -> None:
    cluster = cluster_of().up()
    prompt = prompt_of(40)
    request = cluster.front.add(prompt, max_tokens=max_tokens)
    assert cluster.front.finish(request) == continuation(prompt, max_tokens)
    assert cluster.front.finish_reason(request) == wire.LENGTH
    cluster.settle()
    assert cluster.store.held == {}


def test_a04_one_token_is_prefills_answer_and_decode_never_hears_of_it(
    cluster_of: Clusters,
) -> None:
    cluster = cluster_of().up()
    before = len(cluster.engines["d0"].added)
    cluster.front.generate(prompt_of(40), max_tokens=1, stop=["x"], logprobs=2)
    assert len(cluster.engines["d0"].added) == before
    sampling = cluster.engines["p0"].added[-1].sampling_params
    assert sampling == {"temperature": 0.0, "max_tokens": 1, "stop": ["x"], "logprobs": 2}


@pytest.mark.parametrize(
    "asked",
    [{"max_tokens": 50, "min_tokens": 20}, {"max_tokens": 64}, {"max_tokens": 30, "n": 1}, {}],
)
def test_a06_prefill_is_capped_at_one_token_and_decode_keeps_the_clients_limits(
    cluster_of: Clusters, asked: dict[str, int]
) -> None:
    cluster = cluster_of().up()
    prompt = prompt_of(40)
    tokens = cluster.front.generate(prompt, stop=["never"], logprobs=3, **asked)
    assert tokens == continuation(prompt, asked.get("max_tokens", 16))
    prefill = cluster.engines["p0"].added[-1].sampling_params
    decode = cluster.engines["d0"].added[-1].sampling_params
    assert prefill is not None
    assert decode is not None
    limits = {k: prefill.get(k) for k in ("max_tokens", "min_tokens", "n", "ignore_eos")}
    assert limits == {"max_tokens": 1, "min_tokens": 0, "n": 1, "ignore_eos": True}
    assert not {"stop", "logprobs"} & prefill.keys()
    client = {"temperature": 0.0, "max_tokens": 16, "stop": ["never"], "logprobs": 3, **asked}
    assert {k: v for k, v in decode.items() if k != "extra_args"} == client


@pytest.mark.parametrize("option", ["prompt_logprobs", "prompt_logprob_token_ids"])
def test_a08_prompt_logprobs_are_answered_by_the_engine_that_computes_the_prompt(
    cluster_of: Clusters, option: str
) -> None:
    cluster = cluster_of().up()
    before = len(cluster.engines["p0"].added)
    prompt = prompt_of(40)
    tokens = cluster.front.generate(prompt, max_tokens=4, **{option: 1})
    assert tokens == continuation(prompt, 4)
    assert len(cluster.engines["p0"].added) == before
    sampling = cluster.engines["d0"].added[-1].sampling_params
    assert sampling == {"temperature": 0.0, "max_tokens": 4, option: 1}


def test_a09_one_handle_is_read_by_one_decode_leg(cluster_of: Clusters) -> None:
    cluster = cluster_of(2, 2).up()
    prompts = [prompt_of(length, seed) for length in (3, B, 5 * B) for seed in range(10)]
    requests = [cluster.front.add(prompt, max_tokens=6) for prompt in prompts]
    answers = [cluster.front.finish(request) for request in requests]
    assert answers == [continuation(prompt, 6) for prompt in prompts]
    assert cluster.store.misread == []
    assert len(cluster.store.read) == len(set(cluster.store.read))


def test_a10_cached_tokens_are_prefills_view(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    request = cluster.front.add(prompt_of(50), max_tokens=4)
    cluster.front.finish(request)
    stats = [
        o.prefill_stats for o in cluster.front.received[request] if o.prefill_stats != wire.NIL
    ]
    assert [wire.decode_value(s) for s in stats] == [{"num_cached_tokens": 0}]


def test_a13_the_clients_id_is_never_an_engines_key(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    prompt = prompt_of(20)
    for _ in range(3):  # the same id again, right after the last one ended
        cluster.front.received.clear()
        assert cluster.front.generate(prompt, request_id="mine") == continuation(prompt, 16)
    for engine in cluster.engines.values():
        keys = [request.request_id for request in engine.added]
        assert "mine" not in keys
        assert len(keys) == len(set(keys))
        assert {request.external_req_id for request in engine.added} == {None}


def test_a13_two_live_requests_with_one_id_both_end(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    cluster.engines["d0"].behaviour.step_s = 0.02
    cluster.front.add(prompt_of(20), request_id="mine", max_tokens=1000)
    cluster.front.until(lambda: cluster.front.tokens("mine"))
    cluster.front.add(prompt_of(20), request_id="mine", max_tokens=1000)
    cluster.front.until(lambda: cluster.front.finish_reason("mine") == wire.ERROR)
    cluster.settle()


@pytest.mark.parametrize("request_id", ["x" * 1_000_000, "a\nb", "ü" * 400])
def test_a13_an_odd_id_never_harms(cluster_of: Clusters, request_id: str) -> None:
    cluster = cluster_of().up()
    prompt = prompt_of(20)
    tokens = cluster.front.generate(prompt, request_id=request_id)
    if len(request_id) > 1024:
        assert cluster.front.finish_reason(request_id) == wire.ERROR
    else:
        assert tokens == continuation(prompt, 16)
    assert max(len(r.request_id) for r in cluster.engines["p0"].added) < 1100
    assert cluster.front.generate(prompt) == continuation(prompt, 16)


def test_c02_tokens_are_passed_on_as_they_come(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    request = "r"
    # Decode makes no token before the one ahead of it has come: a relay that collects would wait.
    cluster.engines["d0"].behaviour.most_tokens = lambda _: 1 + len(cluster.front.tokens(request))
    cluster.front.add(prompt_of(20), max_tokens=20, request_id=request)
    assert len(cluster.front.finish(request)) == 20
    assert all(len(output.new_token_ids) == 1 for output in cluster.front.received[request])


def test_clients_transfer_parameters_never_reach_an_engine(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    evil = {
        "do_remote_prefill": True,
        "remote_engine_id": "p0",
        "remote_request_id": "someone-elses",
        "remote_block_ids": [[1, 2, 3]],
        "remote_host": "192.0.2.1",
        "remote_port": 5600,
    }
    cluster.store.held["someone-elses"] = (1, 2, 3)
    prompt = prompt_of(40)
    for options in ({}, {"max_tokens": 1}, {"prompt_logprobs": 1}):
        extra = {"kv_transfer_params": evil, "ec_transfer_params": evil, "mine": 1}
        cluster.front.generate(prompt, extra_args=extra, **options)
    for engine in cluster.engines.values():
        for request in engine.added:
            carried = msgspec.json.encode(
                (request.sampling_params or {}).get("extra_args")
            ).decode()
            assert "192.0.2.1" not in carried
            assert "someone-elses" not in carried
    assert "someone-elses" in cluster.store.held
    mine = [(r.sampling_params or {}).get("extra_args") or {} for r in cluster.engines["d0"].added]
    assert sum(extra.get("mine") == 1 for extra in mine) == 2  # what is no transfer passes


def test_handles_and_scheduler_statistics_stay_with_the_controller(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    request = cluster.front.add(prompt_of(40), max_tokens=4)
    cluster.front.finish(request)
    assert {bytes(o.kv_transfer_params) for o in cluster.front.received[request]} == {b"\xc0"}
    assert cluster.front.stats_seen == 0


def test_tensors_of_a_request_travel_with_both_legs(cluster_of: Clusters) -> None:
    cluster = cluster_of().up()
    frames = [b"first tensor", b"second" * 10_000]
    request = cluster.front.add(prompt_of(40), frames=frames)
    cluster.front.finish(request)
    assert cluster.engines["p0"].frames[-1] == frames
    assert cluster.engines["d0"].frames[-1] == frames


def test_answers_go_to_the_api_server_that_asked(cluster_of: Clusters) -> None:
    cluster = cluster_of(api_servers=2).up()
    prompts = [prompt_of(30, seed) for seed in range(20)]
    ids = [
        cluster.front.add(prompt, api=i % 2, request_id=f"same-{i // 2}")
        for i, prompt in enumerate(prompts)
    ]
    for request in ids:
        # Both API servers use the same ids: each must get all of its own answers, and no other's.
        cluster.front.until(partial(lambda name: len(cluster.front.tokens(name)) == 32, request))
    assert {r.client_index for e in cluster.engines.values() for r in e.added} == {0}


def test_c01_loads_return_to_zero_and_idle_engines_take_turns(cluster_of: Clusters) -> None:
    cluster = cluster_of(1, 3).up()
    cluster.engines["d1"].behaviour.fail = lambda r: (
        len(wire.decode_value(r.prompt_token_ids)) == 13
        and ":-1:" not in r.request_id  # no probe, whose prompt is as long: its link would be stale
    )
    rng = random.Random(5)
    for seed in range(150):
        request = cluster.front.add(prompt_of(13 if seed % 20 == 0 else 30, seed), max_tokens=8)
        if seed % 2:
            cluster.front.read()
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.01)
            cluster.front.abort(request)
    cluster.settle()
    # A failed transfer is followed by a probe of its link, which is load as well while it runs.
    cluster.until(lambda: {i.in_flight for i in cluster.status().instances} == {0})

    def answered(name: str) -> int:
        """Users' decode legs that it has been given: not probes, nor late handles to give back."""
        ids = [asked.request_id for asked in cluster.engines[name].added]
        return sum(leg.startswith("d:") and ":-1:" not in leg for leg in ids)

    counts = {name: answered(name) for name in ("d0", "d1", "d2")}
    for seed in range(90):
        cluster.front.generate(prompt_of(30, 1000 + seed), max_tokens=2)
    shares = [answered(name) - count for name, count in counts.items()]
    assert max(shares) - min(shares) <= 3, shares


def test_utility_calls_reach_all_engines_and_their_answers_become_one(cluster_of: Clusters) -> None:
    cluster = cluster_of(1, 2).up()
    answer = cluster.front.call(7, "get_supported_tasks")
    assert answer.call_id == 7
    assert wire.decode_value(answer.result) == [None, ["generate"]]
    cluster.front.call(8, "sleep", 1, "abort")
    for engine in cluster.engines.values():
        assert engine.utilities == [("get_supported_tasks", []), ("sleep", [1, "abort"])]
