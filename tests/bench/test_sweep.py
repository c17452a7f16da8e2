from random import Random

import pytest

from fakes.bench_runs import always, answered, failed, result, steady
from vdisagg.bench.result import Result
from vdisagg.bench.slo import Slo
from vdisagg.bench.sweep import Sweep, ratios, sweep
from vdisagg.bench.sweep_verdict import sweep_verdict

SLO = Slo(ttft_s=0.5)


def at(rate: float | None, good: int, *, of: int = 100, label: str = "") -> Result:
    """A run at a rate in which so many requests keep the SLO."""
    return steady(label, lambda i: 0.2 if i < good else 0.8, always(0.1), count=of, rate_per_s=rate)


def swept(*shares: tuple[float | None, int], slo: Slo | None = SLO, label: str = "P/D") -> Sweep:
    return sweep([at(rate, good) for rate, good in shares], slo=slo, label=label)


def test_the_highest_rate_that_meets_the_slo_and_the_next_that_did_not() -> None:
    found = swept((1, 100), (4, 70), (2, 90))
    assert [point.rate_per_s for point in found.points] == [1, 2, 4]
    assert [point.meets for point in found.points] == [True, True, False]
    assert found.best == found.points[1]
    assert found.next == found.points[2]
    assert found.odd == []
    assert found.sentence == (
        "P/D: 2 requests/s is the highest rate tried with 90 % of the requests within ttft=500ms "
        "(90.0 %); 4 requests/s has 70.0 %."
    )


def test_a_point_has_these_values() -> None:
    # TTFT 0.2 and 0.8; then four gaps of 0.1. Sent at 0 and 0.5, so the last token is at 1.7.
    found = swept((2, 1), slo=SLO)
    point = sweep([at(2, 1, of=2)], slo=SLO, attain=0.5).points[0]
    assert found.points[0].requests == 100
    assert (point.requests, point.failed, point.goodput, point.meets) == (2, 0, 0.5, True)
    assert point.achieved_rate_per_s == 2.0
    assert point.ttft_p50_s == pytest.approx(0.5)
    assert point.ttft_p99_s == pytest.approx(0.794)
    assert point.tpot_mean_s == pytest.approx(0.1)
    assert point.itl_p99_s == pytest.approx(0.1)
    assert point.e2e_mean_s == pytest.approx(0.9)
    assert point.output_tokens_per_s == pytest.approx(10 / 1.7)
    assert point.good_per_s == pytest.approx(1 / 1.7)


def test_every_rate_may_meet_it_and_none() -> None:
    assert swept((1, 100), (None, 95)).sentence == (
        "P/D: all at once is the highest rate tried with 90 % of the requests within ttft=500ms "
        "(95.0 %); none that was tried was too high."
    )
    none = swept((1, 89), (2, 0))
    assert none.best is None
    assert none.sentence == (
        "P/D: no rate that was tried has 90 % of the requests within ttft=500ms; "
        "1 requests/s has 89.0 %."
    )


def test_a_higher_rate_that_meets_it_again_is_told_and_does_not_count() -> None:
    found = swept((1, 100), (2, 80), (4, 95), (8, 10))
    assert found.best == found.points[0]
    assert found.odd == [found.points[2]]
    assert found.sentence == (
        "P/D: 1 requests/s is the highest rate tried with 90 % of the requests within ttft=500ms "
        "(100 %); 2 requests/s has 80.0 %; yet 4 requests/s (95.0 %) met it again: repeat with more "
        "requests before you trust either."
    )


def test_without_an_slo_no_rate_is_the_highest() -> None:
    found = swept((1, 100), slo=None)
    assert (found.best, found.next, found.points[0].meets) == (None, None, None)
    assert found.sentence == "P/D: no SLO was given, so no rate is called the highest one."


def compared(pd: Sweep, baseline: Sweep) -> tuple[str, str]:
    found = sweep_verdict(pd, baseline)
    return found.answer, found.sentence


def test_the_side_that_holds_the_slo_at_the_higher_rate_wins() -> None:
    high = swept((1, 100), (2, 100), (4, 10))
    low = swept((1, 100), (2, 10), (4, 10), label="colocated")
    never = swept((1, 10), (2, 10), (4, 10), label="colocated")
    assert compared(high, low) == (
        "pays",
        "P/D pays here: 90 % of the requests within ttft=500ms, P/D up to 2 requests/s, colocated "
        "up to 1 requests/s (rates tried: 1 requests/s, 2 requests/s, 4 requests/s).",
    )
    assert compared(high, never)[1] == (
        "P/D pays here: 90 % of the requests within ttft=500ms, P/D up to 2 requests/s, colocated "
        "at no rate (rates tried: 1 requests/s, 2 requests/s, 4 requests/s)."
    )
    assert sweep_verdict(low, high).answer == "does not pay"
    assert sweep_verdict(low, high).sentence.startswith("Don't: 90 % of the requests within ")
    assert compared(low, low) == (
        "no difference",
        "No difference shown: colocated and colocated both have 90 % of the requests within "
        "ttft=500ms up to 1 requests/s (rates tried: 1 requests/s, 2 requests/s, 4 requests/s).",
    )
    assert sweep_verdict(never, never).answer == "no difference"


def test_a_sweep_with_odd_points_or_a_doubtful_load_is_not_trusted() -> None:
    odd = swept((1, 100), (2, 80), (4, 95))
    few = at(1, 99, of=99, label="colocated, 1")
    plain = sweep([few, at(2, 80)], slo=SLO, label="colocated")
    found = sweep_verdict(odd, plain)
    assert found.doubts == [
        "colocated, 1: 99 requests are too few, it takes 100",
        "P/D: 4 requests/s met the SLO after a lower rate had missed it",
        "the rates tried differ",
    ]
    assert found.sentence.startswith("Not to be trusted (colocated, 1: 99 requests are too few, ")


def test_requests_that_fail_in_a_sweep_have_missed_the_slo_and_are_no_doubt() -> None:
    broken = result([*(answered(i, 0.1, 0.1) for i in range(88)), *map(failed, range(88, 100))])
    found = sweep([broken], slo=SLO)
    assert (found.points[0].goodput, found.points[0].meets, found.doubts) == (0.88, False, [])


def test_the_best_ratio_has_the_highest_goodput() -> None:
    runs = [at(2, 70, label="1:3"), at(2, 95, label="2:2"), at(2, 40, label="3:1")]
    found = ratios(runs, slo=SLO)
    assert (found.best, found.by) == (found.points[1], "goodput")
    assert found.sentence == (
        "With 2:2 the most requests meet ttft=500ms: 95.0 %, against 1:3 70.0 %, 3:1 40.0 %."
    )


def test_without_an_slo_the_best_ratio_has_the_shortest_mean_e2e_of_those_that_fail_least() -> None:
    fast = result([answered(i, 0.1, 0.1) for i in range(99)] + [failed(99)], "1:3")
    middle = steady("2:2", always(0.2), always(0.1))
    slow = steady("3:1", always(0.4), always(0.1))
    none = result([failed(0)], "4:0")
    found = ratios([fast, slow, middle, none], slo=None)
    assert (found.best, found.by) == (found.points[2], "E2E mean")
    assert found.sentence == (
        "With 2:2 the mean E2E is shortest: 0.60 s, against 1:3 0.50 s (1 failed), 3:1 0.80 s, "
        "4:0 nothing finished."
    )
    assert found.doubts == [
        "1:3: 1 of 100 requests failed (HTTP 500)",
        "4:0: 1 of 1 requests failed (HTTP 500)",
        "4:0: 1 requests are too few, it takes 100",
    ]
    assert ratios([none], slo=None).sentence == "No ratio finished a request."


def test_ratios_that_are_not_shown_to_differ_from_the_best_are_named() -> None:
    runs = [at(2, 95, label="2:2"), at(2, 94, label="1:3"), at(2, 40, label="3:1")]
    assert ratios(runs, slo=SLO, rng=Random(1)).sentence == (
        "With 2:2 the most requests meet ttft=500ms: 95.0 %, against 1:3 94.0 %, 3:1 40.0 %; "
        "no difference is shown to 1:3."
    )


def test_order_of_the_runs_does_not_matter() -> None:
    runs = [at(rate, good) for rate, good in ((1, 100), (2, 90), (4, 10))]
    shuffled = list(runs)
    Random(3).shuffle(shuffled)
    assert sweep(shuffled, slo=SLO) == sweep(runs, slo=SLO)
