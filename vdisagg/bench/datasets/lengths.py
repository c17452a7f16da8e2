"""How long prompts and answers are: a number of tokens, or a range that each request draws from."""

from __future__ import annotations

from random import Random

import msgspec

from vdisagg.errors import UsageError


class Lengths(msgspec.Struct, frozen=True):
    """From `least` to `most` tokens, both included, all equally likely."""

    least: int
    most: int

    def draw(self, rng: Random) -> int:
        """One length. An exact one takes nothing from `rng`."""
        return self.least if self.least == self.most else rng.randint(self.least, self.most)

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


def exactly(tokens: int) -> Lengths:
    """Always so many."""
    return Lengths(tokens, tokens)


def parse(text: str, *, option: str) -> Lengths:
    """ "1000", or "800:1200". Raises UsageError naming the option."""
    parts = text.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise UsageError(
            f"{option} {text}: a number of tokens is expected, like 1000, or a range, like 800:1200"
        )
    least, most = numbers[0], numbers[-1]
    if least < 1:
        raise UsageError(f"{option} is {text}; it must be 1 or more")
    if most < least:
        raise UsageError(f"{option} {text}: the range ends before it begins")
    return Lengths(least, most)
