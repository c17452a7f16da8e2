from random import Random

import pytest

from vdisagg.bench.datasets.lengths import Lengths, exactly, parse
from vdisagg.errors import UsageError


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("1000", Lengths(1000, 1000)), ("800:1200", Lengths(800, 1200)), ("7:7", Lengths(7, 7))],
)
def test_a_length_is_a_number_or_a_range(text: str, lengths: Lengths) -> None:
    assert parse(text, option="--input-len") == lengths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--input-len : a number of tokens is expected, like 1000, or a range, like 800:1200"),
        ("many", "--input-len many: a number of tokens is expected"),
        ("1:2:3", "--input-len 1:2:3: a number of tokens is expected"),
        ("800:", "--input-len 800:: a number of tokens is expected"),
        ("0", "--input-len is 0; it must be 1 or more"),
        ("0:5", "--input-len is 0:5; it must be 1 or more"),
        ("5:4", "--input-len 5:4: the range ends before it begins"),
    ],
)
def test_what_is_no_length_is_refused_by_its_option(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text, option="--input-len")
    assert str(refused.value).startswith(message)


def test_an_exact_length_takes_nothing_from_the_draw() -> None:
    rng = Random(1)
    assert [exactly(5).draw(rng) for _ in range(3)] == [5, 5, 5]
    assert rng.random() == Random(1).random()


def test_a_length_reads_as_it_was_written() -> None:
    assert [str(Lengths(8, 12)), str(exactly(9))] == ["8:12", "9"]
