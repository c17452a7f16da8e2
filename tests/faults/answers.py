"""What is asked of stand-ins, whose answers are known beforehand."""

from __future__ import annotations

from fakes.engine import continuation
from faults.asker import Question
from faults.stage import Questions
from real.ask import random_prompt


def question(length: int, max_tokens: int, number: int, **options: object) -> Question:
    """A prompt of that length."""
    return Question(tuple(random_prompt(length, number)), max_tokens, tuple(options.items()))


QUESTIONS = Questions(
    streams=tuple(question(40, 300, seed) for seed in range(4)),
    held=tuple(question(50, 12, seed) for seed in range(4)),
    unhurried=tuple(question(50, 12, seed, logprobs=1) for seed in range(4)),
    short=question(20, 6, 0),
    right=lambda asked: continuation(asked.prompt, asked.max_tokens),
)
