from random import Random

import msgspec
import pytest

from fakes.bench_runs import always, answered, failed, result, steady
from vdisagg.bench.bootstrap import Interval
from vdisagg.bench.metrics import Row, Unit, resampled, rows, same_schedule
from vdisagg.bench.result import Result
from vdisagg.bench.samples import Sample
from vdisagg.bench.slo import Slo

ALL = [
    "TTFT mean",
    "TTFT p50",
    "TTFT p99",
    "TPOT mean",
    "TPOT p99",
    "ITL p99",
    "E2E mean",
    "E2E p99",
    "requests/s",
    "output tokens/s",
]


def row(
    better: str = "s",
    ratio: tuple[float, float] | None = None,
    difference: tuple[float, float] | None = None,
) -> Row:
    unit: Unit = "s" if better == "less" else "share"
    return Row(
        "x",
        unit,
        1.0,
        1.0,
        Interval(*ratio) if ratio else None,
        Interval(*difference) if difference else None,
    )


def by_name(a: Result, b: Result, slo: Slo | None = None) -> dict[str, Row]:
    return {row.metric: row for row in rows(a, b, slo=slo, rng=Random(1))}


def test_every_metric_has_the_report_s_value() -> None:
    rng = Random(3)
    a = steady("a", lambda _: rng.random(), lambda _: rng.random() / 10)
    found = by_name(a, a)
    assert list(found) == ALL
    report = a.report
    assert report.ttft
    assert report.tpot
    assert report.itl
    assert report.e2e
    assert [found[name].a for name in ALL] == pytest.approx(
        [
            report.ttft.mean,
            report.ttft.median,
            report.ttft.p99,
            report.tpot.mean,
            report.tpot.p99,
            report.itl.p99,
            report.e2e.mean,
            report.e2e.p99,
            report.requests_per_s,
            report.output_tokens_per_s,
        ]
    )


def test_failed_requests_are_in_no_latency_and_in_no_throughput_but_miss_the_slo() -> None:
    samples = [answered(0, 0.5, 0.1), failed(1), answered(2, 1.5, 0.1), answered(3, 0.5, 0.1)]
    found = by_name(result(samples), result(samples), Slo(ttft_s=1.0))
    assert found["TTFT mean"].a == pytest.approx(2.5 / 3)
    # From 0 to the end of number 2, sent at 1.0: 1.0 + 1.5 + 0.4.
    assert found["requests/s"].a == pytest.approx(3 / 2.9)
    assert found["output tokens/s"].a == pytest.approx(15 / 2.9)
    assert found["goodput"].a == 0.5


def died(at: int, *, of: int = 100) -> Result:
    """Two requests a second; from number `at` on each is refused at once."""
    good = [answered(i, 0.1, 0.1) for i in range(at)]
    return result(good + [failed(i, failed_s=i / 2) for i in range(at, of)])


def test_throughput_is_over_the_same_window_as_the_report_s_where_requests_fail() -> None:
    half = died(50)
    found = by_name(half, steady("", always(0.1), always(0.1)))
    # Sent from 0 to 49.5, and the last refused then: 50 requests of 5 tokens in 49.5 s.
    assert found["requests/s"].a == pytest.approx(50 / 49.5) == half.report.requests_per_s
    assert found["output tokens/s"].a == pytest.approx(250 / 49.5)
    # All answered: the last token is at 49.5 + 0.1 + 0.4.
    assert found["requests/s"].b == pytest.approx(100 / 50)


def test_a_server_that_died_on_the_way_is_shown_to_have_less_throughput() -> None:
    found = by_name(died(10), steady("", always(0.1), always(0.1)))
    assert (found["requests/s"].better, found["output tokens/s"].better) == ("b", "b")


def test_a_server_that_answered_nothing_has_a_throughput_of_none_a_second() -> None:
    found = by_name(died(0), steady("", always(0.1), always(0.1)))
    row = found["requests/s"]
    assert (row.a, row.ratio, row.better) == (0.0, None, "b")
    assert found["TTFT mean"].a is None


@pytest.mark.parametrize(
    ("given", "better"),
    [
        (row("less", (0.5, 0.9)), "a"),
        (row("less", (1.1, 1.2)), "b"),
        (row("less", (0.9, 1.0)), ""),
        (row("more", (0.5, 0.9)), "b"),
        (row("more", (1.1, 1.2)), "a"),
        (row("more", None, (0.1, 0.2)), "a"),
        (row("more", None, (-0.1, 0.2)), ""),
        (row("more"), ""),
    ],
)
def test_less_latency_and_more_throughput_is_better_if_the_whole_interval_says_so(
    given: Row, better: str
) -> None:
    assert given.better == better


def test_p99_has_no_interval_until_ten_requests_lie_beyond_it() -> None:
    fast, slow = (steady("", always(t), always(0.01), count=300) for t in (0.1, 0.2))
    few = by_name(fast, slow)
    assert few["TTFT p99"].a == pytest.approx(0.1)
    assert few["TTFT p99"].difference is None
    assert few["TTFT mean"].better == "a"
    latencies = {"TTFT p99", "TPOT p99", "E2E p99"}
    # Of 4 x 300 gaps the twelve longest belong to three requests, where a request's are all equal.
    assert resampled(fast, None).unsure == latencies | {"ITL p99"}
    assert resampled(steady("", always(0.1), always(0.1), count=1000), None).unsure == set()
    other = [answered(i, 0.1, 0.1) for i in range(300)]
    other = [msgspec.structs.replace(s, gaps_s=[0.01, 0.01, 0.01, 0.37]) for s in other]
    assert resampled(result(other), None).unsure == latencies


def test_gaps_are_not_compared_where_some_are_not_known() -> None:
    unknown = Sample(
        number=1, due_s=0.5, sent_s=0.5, first_s=0.6, last_s=0.9, prompt_tokens=1, output_tokens=5
    )
    found = by_name(result([answered(0, 0.1, 0.1), unknown]), steady("", always(0.1), always(0.1)))
    assert found["ITL p99"].a is None
    assert found["TPOT mean"].a == pytest.approx((0.1 + 0.075) / 2)


def test_runs_are_paired_where_their_requests_were_due_at_the_same_times() -> None:
    a = steady("", always(0.1), always(0.1), count=5)
    assert same_schedule(a, steady("", always(0.2), always(0.1), count=5))
    assert not same_schedule(a, steady("", always(0.1), always(0.1), count=6))
