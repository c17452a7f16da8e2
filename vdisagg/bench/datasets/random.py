"""Prompts of random token ids: exact in length, and strange to every prefix cache."""

from __future__ import annotations

from functools import cache
from random import Random

import msgspec

from vdisagg.bench.asks import Ask
from vdisagg.bench.datasets.lengths import Lengths
from vdisagg.errors import UsageError

# A range that lies inside the vocabulary of nearly every model (32,000 and up) and above the special
# tokens that most keep at the low end.
LOWEST_ID = 1000
HIGHEST_ID = 30_000


class Ids(msgspec.Struct, frozen=True):
    """Which token ids are drawn: from `lowest` to `highest`, both included."""

    lowest: int = LOWEST_ID
    highest: int = HIGHEST_ID

    def draw(self, count: int, rng: Random) -> list[int]:
        """`count` ids, all equally likely."""
        return rng.choices(_all(self.lowest, self.highest), k=count)


@cache
def _all(lowest: int, highest: int) -> list[int]:
    """Drawn from instead of computed: a token of a long trace then costs 8 bytes, not 36."""
    return list(range(lowest, highest + 1))


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What drawn requests look like."""

    input_len: Lengths
    """A prompt's length; of a later turn, how much the user adds to the conversation."""
    output_len: Lengths
    prefix_len: int = 0
    """So many tokens at the beginning are the same in all prompts; `input_len` includes them."""
    turns: int = 1
    ids: Ids = Ids()

    def check(self) -> None:
        """Raises UsageError naming the option that can't be."""
        if self.prefix_len < 0:
            raise UsageError(f"--prefix-len is {self.prefix_len}; it must be 0 or more")
        if self.prefix_len > self.input_len.least:
            raise UsageError(
                f"--prefix-len {self.prefix_len} is above --input-len {self.input_len}, "
                "which includes it"
            )
        if self.turns < 1:
            raise UsageError(f"--turns is {self.turns}; it must be 1 or more")


def asks(count: int, shape: Shape, rng: Random) -> list[Ask]:
    """`count` requests in the order in which they are sent, their prompts as token ids.

    With `turns` T they are the turns of count/T conversations, rounded up: every first turn, then
    every second one, and so on; where `count` is no multiple of T, the last ones lack their last
    turn. So the turns of one conversation lie as far apart as the schedule lets them. A turn's
    prompt is the prompt before it, an answer of the length that was asked for then, and what the
    user adds. The answer is drawn: it stands in for the model's own, so that the schedule is fixed
    beforehand and waits for nobody. What the model has really answered is in its cache for nothing.
    """
    conversations = -(-count // shape.turns)
    prefix = shape.ids.draw(shape.prefix_len, rng)
    histories: list[list[int]] = [[] for _ in range(conversations)]
    found: list[Ask] = []
    for number in range(count):
        history = histories[number % conversations]
        start = history or prefix
        shared = 0 if history else len(prefix)
        added = shape.ids.draw(shape.input_len.draw(rng) - shared, rng)
        prompt = [*start, *added]
        output_len = shape.output_len.draw(rng)
        found.append(Ask(prompt, output_len))
        if number + conversations < count:
            histories[number % conversations] = [*prompt, *shape.ids.draw(output_len, rng)]
    return found
