import pytest

from vdisagg.bench.samples import Sample
from vdisagg.bench.slo import Slo, meets, missed, parse
from vdisagg.errors import UsageError

SAMPLE = Sample(
    number=0,
    due_s=0.0,
    sent_s=1.0,
    first_s=1.5,
    last_s=2.5,
    output_tokens=5,
    gaps_s=[0.125, 0.125, 0.25, 0.5],
)
"""TTFT 0.5 s, TPOT 0.25 s, longest gap 0.5 s, E2E 1.5 s."""


def test_an_slo_is_read_with_its_units() -> None:
    found = parse("ttft=500ms, tpot=.05s,e2e=2s,itl=80ms")
    assert found == Slo(ttft_s=0.5, tpot_s=0.05, itl_s=0.08, e2e_s=2.0)
    assert str(found) == "ttft=500ms,tpot=50ms,itl=80ms,e2e=2s"
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an empty part is no bound; allowed are ttft, tpot, itl, e2e, each once, as in "),
        ("ttft=1s,", "an empty part is no bound"),
        ("ttft", "ttft is no bound"),
        ("ttfb=1s", "ttfb=1s is no bound"),
        ("ttft=1s,ttft=2s", "ttft is there twice"),
        ("ttft=500", "ttft is 500; it must be a number above 0 with its unit, ms or s"),
        ("ttft=", "ttft is empty; it must be"),
        ("ttft=0ms", "ttft is 0ms; it must be"),
        ("ttft=-1s", "ttft is -1s; it must be"),
        ("ttft=nans", "ttft is nans; it must be"),
    ],
)
def test_a_wrong_slo_is_told_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert str(raised.value).startswith(f"--slo {text}: {said}")


def test_a_bound_may_be_reached_and_not_passed() -> None:
    reached = Slo(ttft_s=0.5, tpot_s=0.25, itl_s=0.5, e2e_s=1.5)
    assert missed(reached, SAMPLE) == []
    assert meets(reached, SAMPLE)
    passed = Slo(ttft_s=0.4, tpot_s=0.2, itl_s=0.4, e2e_s=1.4)
    assert missed(passed, SAMPLE) == ["ttft", "tpot", "itl", "e2e"]
    assert not meets(passed, SAMPLE)


def test_itl_bounds_the_longest_gap() -> None:
    assert missed(Slo(itl_s=0.49), SAMPLE) == ["itl"]


def test_a_failed_request_meets_nothing() -> None:
    assert not meets(Slo(e2e_s=9.0), Sample(number=0, due_s=0.0, sent_s=0.0, failure="timeout"))


def test_one_token_keeps_the_bounds_on_further_ones() -> None:
    one = Sample(number=0, due_s=0, sent_s=0, first_s=1, last_s=1, output_tokens=1, gaps_s=[])
    assert missed(Slo(tpot_s=0.1, itl_s=0.1), one) == []


def test_gaps_that_are_not_known_are_not_claimed() -> None:
    unknown = Sample(number=0, due_s=0, sent_s=0, first_s=1, last_s=2, output_tokens=3)
    assert missed(Slo(itl_s=100.0, tpot_s=1.0), unknown) == ["itl"]
