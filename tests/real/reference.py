"""What one plain engine answers to one question at a time, and how an answer may differ from that."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from real.ask import post, random_prompt

NEAR: Final = 0.05
"""Nats between the two likeliest tokens: closer ones may change places with the size of a batch."""


@dataclass(frozen=True)
class Question:
    """A greedy completion of token ids, of an exact length."""

    prompt: tuple[int, ...]
    max_tokens: int

    def body(self, model: str, **options: Any) -> dict[str, Any]:
        """For /v1/completions."""
        return {
            "model": model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **options,
        }


def question(length: int, max_tokens: int, seed: object) -> Question:
    """A question about a random prompt."""
    return Question(tuple(random_prompt(length, seed)), max_tokens)


def ask(
    url: str, model: str, asked: Question, *, timeout_s: float = 300, **options: Any
) -> tuple[int, list[int]]:
    """The status, and the tokens where it is 200."""
    body = asked.body(model, **options)
    status, reply = post(url, "/v1/completions", body, timeout_s=timeout_s)
    if status != 200:
        return status, []
    (choice,) = reply["choices"]
    return status, list(choice["token_ids"])


def ask_at_once(url: str, model: str, questions: Sequence[Question]) -> list[tuple[int, list[int]]]:
    """All of them at the same time."""
    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(lambda asked: ask(url, model, asked), questions))


class Reference:
    """A plain engine. Answers are asked for once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._known: dict[Question, list[int]] = {}

    def right(self, asked: Question) -> list[int]:
        """Its answer."""
        if asked not in self._known:
            status, self._known[asked] = ask(self._url, "plain", asked)
            assert status == 200
        return self._known[asked]

    def wrong(self, asked: Question, tokens: Sequence[int]) -> str:
        """Where the answer `tokens` is not the reference's, near ties forgiven; empty: nowhere."""
        right = self.right(asked)
        if list(tokens) == right:
            return ""
        at = next(
            (n for n, (a, b) in enumerate(zip(tokens, right, strict=False)) if a != b), len(tokens)
        )
        if at >= len(tokens):
            return f"{len(tokens)} tokens, not {len(right)}"
        so_far = (*asked.prompt, *right[:at])
        if not self._near_tie(so_far, tokens[at]):
            around = slice(max(0, at - 2), at + 3)
            return f"wrong at token {at}: {list(tokens[around])}, not {right[around]}"
        left = len(right) - at - 1
        if left == 0:
            return ""
        return self.wrong(Question((*so_far, tokens[at]), left), tokens[at + 1 :])

    def _near_tie(self, so_far: tuple[int, ...], token: int) -> bool:
        """Whether `token` is as good as the likeliest one."""
        body = Question(so_far, 1).body("plain", logprobs=2, return_tokens_as_token_ids=True)
        status, reply = post(self._url, "/v1/completions", body)
        assert status == 200, reply
        top = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        return bool(top.get(f"token_id:{token}", -100.0) > max(top.values()) - NEAR)
