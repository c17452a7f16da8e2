import json
from random import Random

import msgspec

from fakes.bench_runs import always, steady
from vdisagg.bench.bootstrap import Interval
from vdisagg.bench.compare import Compared, Comparison, Difference
from vdisagg.bench.metrics import Row
from vdisagg.bench.outcome import Outcome
from vdisagg.bench.result import Result
from vdisagg.bench.slo import Slo
from vdisagg.bench.sweep import ratios, sweep
from vdisagg.bench.verdict import Verdict, verdict
from vdisagg.view.verdict import (
    compare_text,
    comparison_json,
    outcome_json,
    ratios_text,
    sweep_text,
    verdict_json,
    verdict_text,
)

ROWS = [
    Row("TTFT p50", "s", 0.42, 0.2, Interval(1.8, 2.4), Interval(0.2, 0.24)),
    Row("TTFT p99", "s", 0.9, 0.6, None, None),
    Row("ITL p99", "s", None, 0.1, None, None),
    Row("E2E mean", "s", 1.0, 1.0, Interval(0.95, 1.05), Interval(-0.05, 0.05)),
    Row("output tokens/s", "tokens/s", 95.0, 100.0, Interval(0.9, 0.98), Interval(-10.0, -2.0)),
    Row("goodput", "share", 0.5, 0.0, None, Interval(0.4, 0.6)),
]
VERDICT = Verdict("pays", "P/D pays here.", ["P/D: late"], "P/D", "colocated", ROWS)


def test_the_verdict_reads_like_this() -> None:
    assert verdict_text(VERDICT).splitlines() == [
        "P/D pays here.",
        "warning: P/D: late",
        "",
        "                 P/D      colocated  P/D / colocated  95 % CI                better",
        "TTFT p50 ms      420.00   200.00     2.10             1.80 to 2.40           colocated",
        "TTFT p99 ms      900.00   600.00     1.50             -                      too few requests to say",
        "ITL p99 ms       -        100.00     -                -                      not measured",
        "E2E mean ms      1000.00  1000.00    1.00             0.95 to 1.05           no difference shown",
        "output tokens/s  95.00    100.00     0.95             0.90 to 0.98           colocated",
        "goodput          50.0 %   0.0 %      -                +40.0 to +60.0 points  P/D",
    ]


def test_where_a_side_has_nothing_the_difference_is_told_in_the_metrics_own_unit() -> None:
    rows = [
        Row("requests/s", "requests/s", 0.0, 2.0, None, Interval(-2.5, -1.5)),
        Row("TTFT mean", "s", 0.0, 0.5, None, Interval(-0.6, -0.4)),
    ]
    shown = verdict_text(Verdict("not measured", "None.", [], "P/D", "colocated", rows))
    assert "-2.50 to -1.50 requests/s" in shown
    assert "-600.00 to -400.00 ms" in shown


def test_a_sweep_and_ratios_read_like_this() -> None:
    def run(rate: float, ttft: float, label: str = "") -> Result:
        return steady(label, always(ttft), always(0.1), count=2, rate_per_s=rate)

    slo = Slo(ttft_s=0.5)
    # The first run's window ends at 0.5 + 0.2 + 0.4 s: 10 tokens and 2 requests in 1.1 s.
    runs = [run(2, 0.2, "1:3"), run(4, 0.6, "2:2")]
    heading = "sent/s  failed  TTFT p50  TTFT p99  TPOT mean  ITL p99  E2E mean  tokens/s  goodput  goodput/s  SLO"
    warnings = [
        "warning: 1:3: 2 requests are too few, it takes 100",
        "warning: 2:2: 2 requests are too few, it takes 100",
    ]
    lines = sweep_text([sweep(runs, slo=slo), sweep(runs, slo=None)]).splitlines()
    assert lines[:6] == [
        "2 requests/s is the highest rate tried with 90 % of the requests within ttft=500ms (100 %); "
        "4 requests/s has 0 %.",
        *warnings,
        f"rate  {heading}",
        "2     2       0       200       200       100        100      600       9.09      100 %    1.82       met",
        "4     2       0       600       600       100        100      1,000     6.67      0 %      0          missed",
    ]
    assert lines[7] == "no SLO was given, so no rate is called the highest one."
    assert lines[11].endswith("9.09      -        -          -")
    assert ratios_text(ratios(runs, slo=slo)).splitlines()[1:] == [
        *warnings,
        f"P:D  {heading}",
        "1:3  2       0       200       200       100        100      600       9.09      100 %    1.82       met",
        "2:2  2       0       600       600       100        100      1,000     6.67      0 %      0          missed",
    ]


COMPARISON = Comparison(
    [Compared("P/D", [Difference("input_len", "10", "20")], ["B: late"], ROWS[:1])], ["x"], [""]
)


def test_a_comparison_tells_first_what_was_asked_differently() -> None:
    assert compare_text(COMPARISON, "one.json", "other.json").splitlines() == [
        "A is one.json, B is other.json",
        "",
        "P/D",
        "differs    A   B",
        "input_len  10  20",
        "",
        "             A       B       A / B  95 % CI       better",
        "TTFT p50 ms  420.00  200.00  2.10   1.80 to 2.40  B",
        "warning: B: late",
        "",
        "only in A: x",
        "",
        "only in B: unlabelled",
    ]


def test_a_comparison_tells_which_file_lacks_runs() -> None:
    short = msgspec.structs.replace(COMPARISON, cut_short_b="1 of 3 runs was measured")
    assert compare_text(short, "one.json", "other.json").splitlines()[:3] == [
        "A is one.json, B is other.json",
        "warning: B was cut short: 1 of 3 runs was measured",
        "",
    ]
    assert comparison_json(short)["cut_short_b"] == "1 of 3 runs was measured"


def test_programs_get_the_same() -> None:
    found = json.loads(json.dumps(verdict_json(VERDICT)))
    assert (found["answer"], found["sentence"]) == ("pays", "P/D pays here.")
    assert found["rows"][0] == {
        "metric": "TTFT p50",
        "unit": "s",
        "a": 0.42,
        "b": 0.2,
        "ratio": {"low": 1.8, "high": 2.4},
        "difference": {"low": 0.2, "high": 0.24},
        "times": 0.42 / 0.2,
        "better": "b",
    }
    assert found["rows"][3]["better"] is None
    compared = json.loads(json.dumps(comparison_json(COMPARISON)))["compared"][0]
    assert compared["differing"] == [{"name": "input_len", "a": "10", "b": "20"}]
    assert compared["rows"][0]["better"] == "b"


def test_the_json_of_a_bench_has_reports_and_no_samples() -> None:
    runs = [steady(label, always(0.2), always(0.1), count=20) for label in ("P/D", "colocated")]
    outcome = Outcome(runs, verdict(*runs, slo=None, rng=Random(1)), versions={"vllm": "1"})
    found = json.loads(json.dumps(outcome_json(outcome)))
    assert [run["label"] for run in found["runs"]] == ["P/D", "colocated"]
    assert found["runs"][0]["report"] == msgspec.to_builtins(runs[0].report)
    assert found["verdict"]["answer"] == "no difference"
    assert (found["sweep"], found["ratios"], found["versions"]) == ([], None, {"vllm": "1"})
