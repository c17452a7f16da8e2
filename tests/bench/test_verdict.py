from random import Random

import msgspec
import pytest

from fakes.bench_runs import always, answered, failed, result, steady
from vdisagg.bench.bootstrap import Interval
from vdisagg.bench.metrics import Row
from vdisagg.bench.slo import Slo
from vdisagg.bench.verdict import by_goodput, by_metrics, change, differences, doubts, verdict

SLO = Slo(ttft_s=0.5)


def latency(name: str, a: float, b: float, low: float, high: float) -> Row:
    return Row(name, "s", a, b, Interval(low, high), Interval(a - b, a - b))


SHORTER = latency("ITL p99", 0.057, 0.1, 0.48, 0.69)
SHORTER_TOO = latency("TPOT mean", 0.09, 0.1, 0.85, 0.95)
LONGER = latency("TTFT p50", 0.42, 0.2, 1.8, 2.4)
LONGER_TOO = latency("TTFT mean", 0.3, 0.2, 1.4, 1.6)
SAME = latency("E2E mean", 1.0, 1.0, 0.95, 1.05)
UNKNOWN = Row("TTFT p99", "s", 3.0, 1.0, None, None)


def test_it_pays() -> None:
    answer, sentence = by_metrics("P/D", "colocated", [SAME, SHORTER_TOO, SHORTER, UNKNOWN])
    assert answer == "pays"
    assert sentence == (
        "P/D pays here: it shortens ITL p99 by 43 % (95 % CI 31 to 52) (also better: TPOT mean); "
        "nothing measured is worse."
    )


def test_it_does_not_pay() -> None:
    answer, sentence = by_metrics("P/D", "colocated", [LONGER_TOO, LONGER, SAME])
    assert answer == "does not pay"
    assert sentence == (
        "Don't: P/D lengthens TTFT p50 to 2.1× (95 % CI 1.8 to 2.4) (also worse: TTFT mean); "
        "nothing measured is better."
    )


def test_it_depends() -> None:
    answer, sentence = by_metrics("P/D", "colocated", [LONGER_TOO, SHORTER, LONGER, SHORTER_TOO])
    assert answer == "depends"
    assert sentence == (
        "P/D shortens ITL p99 by 43 % (95 % CI 31 to 52) (also better: TPOT mean) but lengthens "
        "TTFT p50 to 2.1× (95 % CI 1.8 to 2.4) (also worse: TTFT mean): it pays only if ITL p99 "
        "matters more to you than TTFT p50."
    )


def test_no_difference_is_shown() -> None:
    answer, sentence = by_metrics("P/D", "colocated", [SAME, UNKNOWN])
    assert answer == "no difference"
    assert sentence == (
        "No difference shown: for every metric the 95 % CI of P/D against colocated includes 1."
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (LONGER_TOO, "lengthens TTFT mean by 50 % (95 % CI 40 to 60)"),
        (
            Row("requests/s", "requests/s", 12.0, 1.0, Interval(11.5, 12.6), None),
            "raises requests/s to 12× (95 % CI 12 to 13)",
        ),
        (
            Row("output tokens/s", "tokens/s", 95.8, 100.0, Interval(0.9375, 0.98), None),
            "lowers output tokens/s by 4.2 % (95 % CI 2.0 to 6.2)",
        ),
        (
            Row("requests/s", "requests/s", 0.2, 4.9, None, Interval(-5.0, -4.4)),
            "lowers requests/s from 4.9 to 0.2",
        ),
    ],
)
def test_a_change_is_told_in_percent_or_from_twice_on_as_a_multiple(row: Row, said: str) -> None:
    assert change(row) == said


def goodput(a: float, b: float, low: float, high: float) -> tuple[str, str]:
    return by_goodput(
        "P/D", "colocated", SLO, Row("goodput", "share", a, b, None, Interval(low, high))
    )


def test_with_an_slo_its_goodput_decides() -> None:
    assert goodput(0.93, 0.71, 0.15, 0.29) == (
        "pays",
        "P/D pays here: 93 % of the requests meet ttft=500ms with P/D, 71 % colocated "
        "(+22.0 points, 95 % CI +15.0 to +29.0).",
    )
    assert goodput(0.6, 0.8, -0.27, -0.13) == (
        "does not pay",
        "Don't: 60 % of the requests meet ttft=500ms with P/D, 80 % colocated "
        "(-20.0 points, 95 % CI -27.0 to -13.0).",
    )
    assert goodput(0.93, 0.92, -0.03, 0.05) == (
        "no difference",
        "No difference shown: 93 % of the requests meet ttft=500ms with P/D, 92 % colocated "
        "(+1.0 points, 95 % CI -3.0 to +5.0).",
    )


def test_two_runs_come_to_a_verdict() -> None:
    pd = steady("P/D", always(0.2), always(0.05))
    colocated = steady("colocated", always(0.2), always(0.1))
    found = verdict(pd, colocated, slo=None, rng=Random(1))
    assert (found.answer, found.doubts, found.a, found.b) == ("pays", [], "P/D", "colocated")
    # TPOT 50 against 100 ms; E2E 400 against 600.
    assert found.sentence == (
        "P/D pays here: it shortens TPOT mean by 50 % (95 % CI 50 to 50) "
        "(also better: E2E mean); nothing measured is worse."
    )


def test_the_same_run_twice_shows_no_difference() -> None:
    rng = Random(2)
    run = steady("", lambda _: rng.random(), lambda _: rng.random())
    found = verdict(run, run, slo=None, rng=Random(1))
    assert found.sentence == (
        "No difference shown: for every metric the 95 % CI of P/D against colocated includes 1."
    )


def test_two_runs_of_the_same_noise_rarely_show_a_difference() -> None:
    def answer(seed: int) -> str:
        rng = Random(seed)
        a, b = (steady("", lambda _: rng.random(), lambda _: rng.random()) for _ in range(2))
        return verdict(a, b, slo=None, rng=rng).answer

    # One in twenty may; by interval, and there are seven of them, it would be a quarter.
    assert [answer(seed) for seed in range(6)].count("no difference") >= 5


def test_two_runs_come_to_a_verdict_by_their_goodput() -> None:
    pd = steady("P/D", always(0.2), always(0.05))
    colocated = steady("colocated", always(0.8), always(0.01))
    found = verdict(pd, colocated, slo=SLO, rng=Random(1))
    assert found.answer == "pays"
    assert found.sentence == (
        "P/D pays here: 100 % of the requests meet ttft=500ms with P/D, 0.0 % colocated "
        "(+100.0 points, 95 % CI +100.0 to +100.0)."
    )


def test_what_can_not_be_trusted_says_so_first() -> None:
    good = [answered(i, 0.2, 0.05) for i in range(58)]
    pd = result([*good, failed(58), failed(59, "timeout")], "P/D")
    colocated = steady("colocated", always(0.2), always(0.1), count=60, input_len=20)
    found = verdict(pd, colocated, slo=None, rng=Random(1))
    assert found.answer == "pays"
    assert found.doubts == [
        "P/D: 2 of 60 requests failed (HTTP 500, timeout)",
        "P/D: 60 requests are too few, it takes 100",
        "colocated: 60 requests are too few, it takes 100",
        "the loads differ: input_len 10 and 20",
    ]
    assert found.sentence == (
        "Not to be trusted (P/D: 2 of 60 requests failed (HTTP 500, timeout); "
        "P/D: 60 requests are too few, it takes 100; "
        "colocated: 60 requests are too few, it takes 100; "
        "the loads differ: input_len 10 and 20): "
        "P/D pays here: it shortens TPOT mean by 50 % (95 % CI 50 to 50) "
        "(also better: E2E mean); nothing measured is worse."
    )


def test_a_side_that_finished_nothing_gives_no_verdict() -> None:
    pd = result([failed(i) for i in range(100)], "P/D")
    found = verdict(pd, steady("colocated", always(0.2), always(0.1)), slo=SLO, rng=Random(1))
    assert found.answer == "not measured"
    assert found.sentence == (
        "Not to be trusted (P/D: 100 of 100 requests failed (HTTP 500)): "
        "No verdict: P/D finished 0 of 100 requests, colocated 100 of 100."
    )


def test_a_load_that_was_late_is_doubtful() -> None:
    # 100 ms late each, where the median TTFT is 500 ms: more than a tenth.
    late = result([answered(i, 0.5, 0.1, sent=i / 2 + 0.1) for i in range(100)])
    assert doubts("A", late.report) == [
        "A: the load generator was late, 100 ms at p99 where the median TTFT is 500 ms"
    ]
    little = result([answered(i, 0.5, 0.1, sent=i / 2 + 0.04) for i in range(100)])
    assert doubts("A", little.report) == []
    short = result([answered(i, 0.01, 0.1, sent=i / 2 + 0.009) for i in range(100)])
    assert doubts("A", short.report) == []


def test_a_rate_that_was_not_reached_is_doubtful() -> None:
    # 99 gaps of 0.6 s where the schedule has 0.5: 1.67 per second.
    samples = [answered(i, 9.0, 0.1, sent=0.6 * i) for i in range(100)]
    assert doubts("A", result(samples, held_s=9.9).report) == [
        "A: 1.67 requests/s were sent where 2 were asked, held back 9.9 s by the cap"
    ]
    close = [answered(i, 9.0, 0.1, sent=0.52 * i) for i in range(100)]
    assert doubts("A", result(close, held_s=1.98).report) == []


def test_all_at_once_has_no_rate_to_miss_and_is_never_late() -> None:
    at_once = [
        msgspec.structs.replace(answered(i, 0.1, 0.1, sent=0.05 * i), due_s=0.0) for i in range(100)
    ]
    assert doubts("A", result(at_once, rate_per_s=None).report) == []


def test_settings_that_differ_are_told() -> None:
    a = steady("", always(0.1), always(0.1), max_in_flight=None, url="http://a:1")
    b = steady("", always(0.1), always(0.1), max_in_flight=8, url="http://b:1")
    assert differences(a, b) == [
        ("url", "http://a:1", "http://b:1"),
        ("max_in_flight", "none", "8"),
    ]
