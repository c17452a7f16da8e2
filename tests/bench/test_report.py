import msgspec
import pytest

from fakes.bench_runs import failed, settings, uneven
from vdisagg.bench.report import (
    InstanceCount,
    LinkCount,
    percentile,
    report,
    spread,
)
from vdisagg.bench.samples import Phases, Sample
from vdisagg.bench.slo import Slo

SETTINGS = settings(requests=3, output_len=3)


def bad(number: int, sent: float, kind: str, detail: str = "") -> Sample:
    """Some tokens had come."""
    return failed(number, kind, due_s=sent, sent_s=sent, first_s=sent + 9, detail=detail)


def test_percentiles_are_interpolated_between_ranks() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert percentile(values, 0.5) == 2.5
    assert percentile(values, 0.0) == 1.0
    assert percentile(values, 1.0) == 4.0
    assert percentile([7.0], 0.99) == 7.0


def test_a_spread_leaves_out_what_has_no_value() -> None:
    found = spread([3.0, None, 1.0])
    assert found is not None
    assert (found.count, found.mean, found.median, found.max) == (2, 2.0, 2.0, 3.0)
    assert spread([None]) is None


def test_a_spread_has_these_percentiles() -> None:
    found = spread(float(value) for value in range(201))
    assert found is not None
    assert (found.median, found.p75, found.p90, found.p95, found.p99) == (100, 150, 180, 190, 198)


def test_rates_and_throughput_are_taken_over_the_window() -> None:
    found = report(SETTINGS, [uneven(0, 1.0), uneven(1, 1.5), uneven(2, 2.0)], held_s=0.0)
    assert found.window_s == pytest.approx(1.3)
    assert found.achieved_rate_per_s == pytest.approx(2.0)
    assert found.requests_per_s == pytest.approx(3 / 1.3)
    assert found.output_tokens_per_s == pytest.approx(9 / 1.3)
    assert (found.prompt_tokens, found.output_tokens) == (30, 9)
    assert found.late is not None
    assert found.late.max == pytest.approx(0.001)


def test_the_window_of_a_server_that_died_half_way_goes_on_to_the_last_sending() -> None:
    # 60 requests, ten a second for 6 s; from 3.0 on each is refused within 10 ms. Answers take 0.3 s.
    good = [uneven(i, i / 10) for i in range(30)]
    refused = [failed(i, sent_s=i / 10, failed_s=i / 10 + 0.01) for i in range(30, 60)]
    found = report(SETTINGS, good + refused, held_s=0.0, slo=Slo(ttft_s=0.2))
    assert found.window_s == pytest.approx(5.91)  # from 0 to 5.9 + 0.01, not to 2.9 + 0.3
    assert found.requests_per_s == pytest.approx(5.076, abs=0.001)  # 30 / 5.91
    assert found.output_tokens_per_s == pytest.approx(15.228, abs=0.001)  # 90 / 5.91
    assert found.goodput is not None
    assert (found.goodput.met, found.goodput.share) == (30, 0.5)
    assert found.goodput.per_s == pytest.approx(5.076, abs=0.001)


def test_the_window_ends_with_the_last_failure_where_that_comes_last() -> None:
    samples = [uneven(0, 1.0), failed(1, "timeout", sent_s=1.5, failed_s=11.0), uneven(2, 2.0)]
    found = report(SETTINGS, samples, held_s=0.0)
    assert (found.window_s, found.requests_per_s) == (10.0, 0.2)  # from 1.0 to 11.0, two of three


def test_failures_of_older_files_tell_no_time_and_count_until_their_sending_at_least() -> None:
    found = report(SETTINGS, [uneven(0, 0.0), failed(1, sent_s=4.0)], held_s=0.0)
    assert (found.window_s, found.requests_per_s) == (4.0, 0.25)


def test_latencies_are_those_of_requests_that_succeeded() -> None:
    found = report(SETTINGS, [uneven(0, 0.0), bad(1, 0.1, "HTTP 500"), uneven(2, 0.2)], held_s=0.0)
    assert found.ttft is not None
    assert found.ttft.count == 2
    assert found.ttft.max == pytest.approx(0.1)
    assert found.tpot is not None
    assert found.tpot.mean == pytest.approx(0.1)
    assert found.itl is not None
    assert found.itl.count == 4
    assert found.itl.max == pytest.approx(0.15)
    assert found.e2e is not None
    assert found.e2e.mean == pytest.approx(0.3)


def test_failures_are_told_by_kind_with_the_first_ones_words() -> None:
    samples = [
        bad(0, 0, "timeout"),
        bad(1, 0, "HTTP 500", "first"),
        bad(2, 0, "HTTP 500", "second"),
    ]
    found = report(SETTINGS, samples, held_s=0.0)
    assert [(f.kind, f.count, f.example) for f in found.failures] == [
        ("HTTP 500", 2, "first"),
        ("timeout", 1, ""),
    ]
    assert (found.finished, found.failed, found.ttft, found.requests_per_s) == (0, 3, None, 0.0)


def test_gaps_are_not_reported_when_some_requests_have_none() -> None:
    assert report(SETTINGS, [uneven(0, 0.0), uneven(1, 0.5, gaps_s=None)], held_s=0.0).itl is None


def test_f04_the_share_of_prefix_hits_is_reported_where_it_is_known() -> None:
    known = [uneven(0, 0.0, cached_tokens=5), uneven(1, 0.5, cached_tokens=0)]
    assert report(SETTINGS, known, held_s=0.0).prefix_hit_share == pytest.approx(0.25)
    assert report(SETTINGS, [uneven(0, 0.0)], held_s=0.0).prefix_hit_share is None


def test_all_at_once_has_no_rate() -> None:
    at_once = settings(rate_per_s=None)
    assert report(at_once, [uneven(0, 0.0), uneven(1, 0.0)], held_s=0.0).achieved_rate_per_s is None


def test_goodput_is_a_share_of_all_requests_and_a_rate_over_the_window() -> None:
    samples = [
        uneven(0, 0.0),
        uneven(1, 0.5, first_s=0.75),
        uneven(2, 1.0, first_s=1.5, last_s=2.0),
        bad(3, 1.5, "timeout"),
        uneven(4, 1.6, last_s=2.0),
    ]
    found = report(SETTINGS, samples, held_s=0.0, slo=Slo(ttft_s=0.2, e2e_s=0.5)).goodput
    assert found is not None
    # The window ends at 2.0; of the five, 0 and 4 keep both bounds, 1 misses one, 2 misses both.
    assert (found.met, found.share, found.per_s) == (2, 0.4, 1.0)
    assert found.missed == {"ttft": 2, "e2e": 1}
    assert report(SETTINGS, samples, held_s=0.0).goodput is None


def test_goodput_is_none_of_it_where_all_failed() -> None:
    found = report(SETTINGS, [bad(0, 0.0, "timeout")], held_s=0.0, slo=Slo(ttft_s=1.0)).goodput
    assert found is not None
    assert (found.met, found.share, found.per_s, found.missed) == (0, 0.0, 0.0, {"ttft": 0})


def phases(prefill: str, decode: str, queue: float, transfer: float | None) -> Phases:
    known = None if transfer is None else 0.25
    return Phases(prefill, decode, queue, known, transfer, 1.0)


def test_phases_are_spread_over_the_requests_that_succeeded_and_had_them() -> None:
    samples = [
        uneven(0, 0.0, phases=phases("p0", "d0", 0.5, 0.125)),
        uneven(1, 0.5, phases=phases("", "d0", 1.5, None)),
        msgspec.structs.replace(bad(2, 1.0, "x"), phases=phases("p0", "d1", 9.0, 9.0)),
        uneven(3, 1.5),
    ]
    found = report(SETTINGS, samples, held_s=0.0).phases
    assert found is not None
    assert found.queue is not None
    assert (found.queue.count, found.queue.mean) == (2, 1.0)
    assert found.transfer is not None
    assert (found.transfer.count, found.transfer.mean) == (1, 0.125)
    assert found.prefill is not None
    assert found.prefill.mean == 0.25
    assert found.decode is not None
    assert found.decode.mean == 1.0


def test_requests_are_counted_by_pair_and_by_instance() -> None:
    pairs = [("p1", "d0"), ("p0", "d0"), ("p1", "d0"), ("", "d1"), ("d1", "d0")]
    samples = [uneven(i, i, phases=phases(*pair, 0.0, 0.0)) for i, pair in enumerate(pairs)]
    found = report(SETTINGS, samples, held_s=0.0)
    assert found.links == [
        LinkCount("", "d1", 1),
        LinkCount("d1", "d0", 1),
        LinkCount("p0", "d0", 1),
        LinkCount("p1", "d0", 2),
    ]
    assert found.instances == [
        InstanceCount("d0", 0, 4),
        InstanceCount("d1", 1, 1),
        InstanceCount("p0", 1, 0),
        InstanceCount("p1", 2, 0),
    ]


def test_a_server_that_is_not_ours_tells_no_phases() -> None:
    found = report(SETTINGS, [uneven(0, 0.0)], held_s=0.0)
    assert (found.phases, found.links, found.instances) == (None, [], [])


def test_the_schedule_has_a_rate_of_its_own() -> None:
    samples = [uneven(0, 0.0, due_s=0.0), uneven(1, 0.75, due_s=0.5), uneven(2, 2.0, due_s=1.0)]
    found = report(SETTINGS, samples, held_s=0.0)
    assert (found.scheduled_rate_per_s, found.achieved_rate_per_s) == (2.0, 1.0)
