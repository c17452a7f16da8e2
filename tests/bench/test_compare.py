from random import Random
from typing import Any

import pytest

from fakes.bench_runs import always, steady
from vdisagg.bench.compare import Difference, compare
from vdisagg.bench.outcome import Outcome
from vdisagg.bench.result import Result
from vdisagg.bench.slo import Slo
from vdisagg.errors import UsageError


def run(label: str = "", ttft: float = 0.2, **more: Any) -> Result:
    return steady(label, always(ttft), always(0.1), count=30, **more)


def test_runs_are_matched_by_their_labels() -> None:
    a = Outcome(runs=[run("P/D", 0.2), run("colocated", 0.4), run("x")])
    b = Outcome(runs=[run("colocated", 0.2), run("P/D", 0.2), run("y")])
    found = compare(a, b, rng=Random(1))
    assert [each.label for each in found.compared] == ["P/D", "colocated"]
    ttft = found.compared[1].rows[0]
    assert (ttft.metric, ttft.better) == ("TTFT mean", "b")
    assert ttft.times == pytest.approx(2.0)
    assert (found.only_a, found.only_b) == (["x"], ["y"])
    assert (found.cut_short_a, found.cut_short_b) == ("", "")


def test_that_a_bench_was_cut_short_is_kept() -> None:
    a, b = Outcome(runs=[run()]), Outcome(runs=[run()], cut_short="SIGINT")
    found = compare(a, b, rng=Random(1))
    assert (found.cut_short_a, found.cut_short_b) == ("", "SIGINT")


def test_one_run_each_is_compared_whatever_the_labels() -> None:
    a, b = Outcome(runs=[run("P/D")]), Outcome(runs=[run("")])
    assert compare(a, b, rng=Random(1)).compared[0].label == "P/D and B"
    assert compare(a, b, rng=Random(1)).only_a == []


def test_files_without_a_common_run_are_refused() -> None:
    a, b = Outcome(runs=[run("x"), run("")]), Outcome(runs=[run("y")])
    with pytest.raises(UsageError, match="the first has x, one without a label, the second y"):
        compare(a, b, rng=Random(1))


def test_settings_and_versions_that_differ_are_named() -> None:
    a = Outcome(runs=[run(input_len=10, prompt_seed=1)], versions={"vllm": "1", "vdisagg": "2"})
    b = Outcome(runs=[run(input_len="5-15", prompt_seed=2)], versions={"vllm": "3", "vdisagg": "2"})
    assert compare(a, b, rng=Random(1)).compared[0].differing == [
        Difference("input_len", "10", "5-15"),
        Difference("vllm", "1", "3"),
    ]


def test_what_makes_either_run_doubtful_is_told() -> None:
    found = compare(Outcome(runs=[run()]), Outcome(runs=[run()]), rng=Random(1)).compared[0]
    assert found.doubts == [
        "A: 30 requests are too few, it takes 100",
        "B: 30 requests are too few, it takes 100",
    ]


def test_goodput_is_compared_under_the_same_slo_only() -> None:
    one, other = Outcome(runs=[run(slo=Slo(ttft_s=0.3))]), Outcome(runs=[run(slo=Slo(ttft_s=0.1))])
    same = compare(one, one, rng=Random(1)).compared[0].rows[-1]
    assert (same.metric, same.a) == ("goodput", 1.0)
    assert compare(one, other, rng=Random(1)).compared[0].rows[-1].metric == "output tokens/s"
