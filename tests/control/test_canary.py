"""The verdict over a proof's tokens: the same, a near tie, or a difference that is named."""

from __future__ import annotations

import pytest

from vdisagg.control.canary import NEAR_TIE, verdict

ALONE = [5, 6, 7]
SURE = [{5: -0.1, 9: -3.0}, {6: -0.1, 9: -3.0}, {7: -0.1, 9: -3.0}]
CLOSE = NEAR_TIE - 0.01


def top(at: int, likeliest: dict[int, float]) -> list[dict[int, float]]:
    """Log probabilities that are sure of every token but one."""
    return [*SURE[:at], likeliest, *SURE[at + 1 :]]


def test_the_same_tokens_are_a_proof_with_or_without_log_probabilities() -> None:
    assert verdict(ALONE, ALONE, SURE) == ""
    assert verdict(ALONE, ALONE, []) == ""


@pytest.mark.parametrize("at", [0, 1, 2])
def test_another_token_is_told_with_its_place(at: int) -> None:
    tokens = [*ALONE[:at], 9, *ALONE[at + 1 :]]
    said = verdict(tokens, ALONE, SURE)
    assert said == f"token {at + 1} of 3 is 9, where it computes {ALONE[at]} alone"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_near_tie_is_forgiven_and_so_is_all_that_follows(at: int) -> None:
    tokens = [*ALONE[:at], 9, *([1] * (2 - at))]
    assert verdict(tokens, ALONE, top(at, {ALONE[at]: -0.7, 9: -0.7 - CLOSE, 4: -9.0})) == ""


@pytest.mark.parametrize(
    "likeliest",
    [
        {5: -0.7, 9: -0.7 - NEAR_TIE - 0.01},
        {5: -1.0, 8: -1.01, 9: -1.02},
        {5: -0.7, 8: -0.7},
        {9: -0.7},
        {},
    ],
    ids=["too far apart", "only third", "two others", "no second", "nothing known"],
)
def test_no_other_difference_is_forgiven(likeliest: dict[int, float]) -> None:
    assert verdict([9, 6, 7], ALONE, top(0, likeliest)).startswith("token 1 of 3 is 9")


def test_a_near_tie_does_not_forgive_an_earlier_difference() -> None:
    near = top(1, {6: -0.7, 9: -0.7})
    assert verdict([9, 9, 7], ALONE, near).startswith("token 1 of 3")


def test_a_difference_without_log_probabilities_is_one() -> None:
    assert verdict([9], [5], []) == "token 1 of 1 is 9, where it computes 5 alone"


@pytest.mark.parametrize("count", [0, 2, 4])
def test_another_number_of_tokens_is_a_difference(count: int) -> None:
    said = verdict([*ALONE, 8][:count], ALONE, SURE)
    assert said == f"{count} tokens, where it computes 3 alone"
