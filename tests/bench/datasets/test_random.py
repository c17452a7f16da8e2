from random import Random

import pytest

from vdisagg.bench.asks import Ask
from vdisagg.bench.datasets.lengths import Lengths, exactly
from vdisagg.bench.datasets.random import Ids, Shape, asks
from vdisagg.errors import UsageError


def shape(input_len: int = 50, output_len: int = 8, prefix_len: int = 0, turns: int = 1) -> Shape:
    return Shape(
        input_len=exactly(input_len),
        output_len=exactly(output_len),
        prefix_len=prefix_len,
        turns=turns,
    )


def ids(ask: Ask) -> list[int]:
    assert isinstance(ask.prompt, list)
    assert all(isinstance(token, int) for token in ask.prompt)
    return ask.prompt  # type: ignore[return-value]  # just looked


def test_prompts_and_answers_have_exactly_the_length_asked_for() -> None:
    made = asks(20, shape(37, 8), Random(1))
    assert [(len(ids(ask)), ask.output_len, ask.due_s) for ask in made] == [(37, 8, None)] * 20


def test_ids_are_drawn_from_all_of_the_range_and_no_further() -> None:
    assert set(Ids(5, 9).draw(300, Random(1))) == {5, 6, 7, 8, 9}


def test_lengths_are_drawn_from_all_of_their_range_evenly() -> None:
    ranged = Shape(input_len=Lengths(3, 6), output_len=Lengths(1, 2))
    made = asks(4000, ranged, Random(1))
    for length in (3, 4, 5, 6):
        assert sum(len(ids(ask)) == length for ask in made) == pytest.approx(1000, rel=0.1)
    for length in (1, 2):
        assert sum(ask.output_len == length for ask in made) == pytest.approx(2000, rel=0.1)


def test_f04_prompts_of_one_run_share_no_beginning() -> None:
    assert len({tuple(ids(ask)[:2]) for ask in asks(200, shape(), Random(1))}) == 200


def test_f04_the_seed_repeats_the_prompts_and_another_changes_them() -> None:
    first = asks(3, shape(), Random(1))
    assert asks(3, shape(), Random(1)) == first
    assert asks(3, shape(), Random(2)) != first


def test_a_prefix_is_shared_by_all_and_part_of_the_length() -> None:
    made = asks(100, shape(50, prefix_len=30), Random(1))
    assert {len(ids(ask)) for ask in made} == {50}
    assert len({tuple(ids(ask)[:30]) for ask in made}) == 1
    assert len({tuple(ids(ask)[30:32]) for ask in made}) == 100


def test_turns_go_on_where_the_conversation_was() -> None:
    """3 conversations of 3 turns: prompts of 10, then 10 + 4 + 10, then 24 + 4 + 10 tokens."""
    made = [ids(ask) for ask in asks(9, shape(10, 4, turns=3), Random(1))]
    assert [len(prompt) for prompt in made] == [10] * 3 + [24] * 3 + [38] * 3
    for number in range(6):
        assert made[number + 3][: len(made[number])] == made[number]
    assert len({tuple(prompt[:10]) for prompt in made}) == 3


def test_turns_share_the_prefix_once() -> None:
    made = [ids(ask) for ask in asks(4, shape(10, 4, prefix_len=6, turns=2), Random(1))]
    assert [len(prompt) for prompt in made] == [10, 10, 24, 24]
    assert len({tuple(prompt[:6]) for prompt in made}) == 1


def test_a_number_that_turns_do_not_divide_leaves_last_turns_out() -> None:
    """7 requests in turns of 3 are 3 conversations: of the third turns there is only one."""
    made = [ids(ask) for ask in asks(7, shape(10, 4, turns=3), Random(1))]
    assert [len(prompt) for prompt in made] == [10] * 3 + [24] * 3 + [38]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (shape(10, prefix_len=11), "--prefix-len 11 is above --input-len 10"),
        (shape(10, prefix_len=-1), "--prefix-len is -1"),
        (shape(10, turns=0), "--turns is 0"),
        (Shape(input_len=Lengths(5, 20), output_len=exactly(1), prefix_len=6), "--input-len 5:20"),
    ],
)
def test_what_cannot_be_is_refused_by_its_option(wrong: Shape, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wrong.check()
    shape(10, prefix_len=10, turns=2).check()
