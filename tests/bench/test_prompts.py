from random import Random

from vdisagg.bench.prompts import prompts


def test_prompts_have_the_exact_length_and_stay_in_the_range() -> None:
    made = prompts(20, length=37, rng=Random(1), lowest=5, highest=9)
    assert [len(prompt) for prompt in made] == [37] * 20
    assert {token for prompt in made for token in prompt} == {5, 6, 7, 8, 9}


def test_f04_prompts_of_one_run_share_no_beginning() -> None:
    made = prompts(200, length=50, rng=Random(1))
    assert len({tuple(prompt[:2]) for prompt in made}) == 200


def test_f04_the_seed_repeats_the_prompts_and_another_changes_them() -> None:
    first = prompts(3, length=50, rng=Random(1))
    assert prompts(3, length=50, rng=Random(1)) == first
    assert prompts(3, length=50, rng=Random(2)) != first
