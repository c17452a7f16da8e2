"""Prompts of random token ids: exact in length, and strange to every prefix cache."""

from __future__ import annotations

from random import Random

# A range that lies inside the vocabulary of nearly every model (32,000 and up) and above the special
# tokens that most keep at the low end.
LOWEST_ID = 1000
HIGHEST_ID = 30_000


def prompts(
    count: int, *, length: int, rng: Random, lowest: int = LOWEST_ID, highest: int = HIGHEST_ID
) -> list[list[int]]:
    """`count` prompts of `length` token ids each, between `lowest` and `highest` inclusive."""
    span = highest - lowest + 1
    return [[lowest + int(rng.random() * span) for _ in range(length)] for _ in range(count)]
