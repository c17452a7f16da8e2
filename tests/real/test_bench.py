"""`vdisagg bench` on real engines: the verdict, what it says of requests, and that runs don't feed each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from real.conftest import RealCluster

pytestmark = pytest.mark.real

REQUESTS = 30
LOAD = (
    *("--rate", "10", "--num-requests", str(REQUESTS), "--input-len", "300:340"),
    *("--output-len", "8:16"),
)


def bench(cluster: RealCluster, *words: str) -> dict[str, Any]:
    run = cluster.home.vdisagg("bench", "--name", cluster.name, *LOAD, "--json", *words)
    outcome: dict[str, Any] = json.loads(run.stdout)
    return outcome


def test_both_sides_of_a_verdict_carry_the_same_load_where_they_should(
    tiny: RealCluster, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    outcome = bench(tiny, "--baseline", "--save", str(path))
    verdict = outcome["verdict"]
    assert verdict["sentence"].startswith(
        f"Not to be trusted (P/D: {REQUESTS} requests are too few, it takes 100"
    )
    pd, whole = (run["report"] for run in outcome["runs"])
    assert pd["links"] == [{"prefill": "p0", "decode": "d0", "requests": REQUESTS}]
    by = {each["decode"]: each["requests"] for each in whole["links"]}
    assert sorted(by) == ["d0", "p0"]
    assert sum(by.values()) == REQUESTS
    assert pd["prompt_tokens"] == whole["prompt_tokens"]
    assert pd["output_tokens"] == whole["output_tokens"]
    assert {pd["failed"], whole["failed"]} == {0}
    runs = json.loads(path.read_text())["runs"]
    lengths = [[(s["prompt_tokens"], s["output_tokens"]) for s in run["samples"]] for run in runs]
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 10, "they were drawn from ranges"


def test_phases_are_all_of_a_request_but_the_way_to_the_client(
    tiny: RealCluster, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    bench(tiny, "--save", str(path))
    (run,) = json.loads(path.read_text())["runs"]
    for sample in run["samples"]:
        phases = sample["phases"]
        known = sum(phases[f"{name}_s"] for name in ("queue", "prefill", "transfer", "decode"))
        whole = sample["last_s"] - sample["sent_s"]
        assert known <= whole
        assert phases["prefill_s"] > 0
        assert phases["transfer_s"] > 0
    assert {point["instance"] for point in run["loads"]} == {"p0", "d0"}


def test_f04_a_second_run_finds_nothing_of_the_first_in_the_caches_unless_it_is_told_to(
    tiny: RealCluster,
) -> None:
    for _ in range(2):
        (run,) = bench(tiny)["runs"]
        assert run["report"]["prefix_hit_share"] == 0
    same = ("--reuse", "--prompt-seed", "5")
    (first,), (second,) = (bench(tiny, *same)["runs"] for _ in range(2))
    assert first["report"]["prefix_hit_share"] == 0
    assert second["report"]["prefix_hit_share"] > 0.5
