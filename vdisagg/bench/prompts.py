"""Prompts of random token ids under their old name; datasets/random.py draws them."""

from __future__ import annotations

from random import Random

from vdisagg.bench.datasets.random import HIGHEST_ID, LOWEST_ID, Ids

__all__ = ["HIGHEST_ID", "LOWEST_ID", "prompts"]


def prompts(
    count: int, *, length: int, rng: Random, lowest: int = LOWEST_ID, highest: int = HIGHEST_ID
) -> list[list[int]]:
    """`count` prompts of `length` token ids each, between `lowest` and `highest` inclusive."""
    return [Ids(lowest, highest).draw(length, rng) for _ in range(count)]
