"""Chats of exactly so many tokens, out of words that are one token each to the server's tokenizer.

Text made of any token ids falls into other tokens when the server reads it: neighbours melt into
one, or half a character falls apart. A word with a blank before it stays what it is beside any
other such word, so that prompts which share n drawn ids also share n tokens as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from vdisagg.bench.asks import Message
from vdisagg.bench.datasets.random import Ids
from vdisagg.bench.tokens import INSTEAD, Tokenizer
from vdisagg.errors import Failure

SAMPLE = 4000
"""How many drawn ids the words are looked for in; of a byte-level BPE's nearly half are words."""
FEWEST = 100
"""So few words make no prompts that are strange to a prefix cache's blocks of 16 and more."""
TRIES = 10
"""The first one is right, or the second where the template strips the blank before the first word."""

_WORD = re.compile(r"[Ġ▁ ]([A-Za-z]{2,})")
"""A blank and a word, as the vocabularies of byte-level BPE, SentencePiece and tiktoken write them."""


class Words:
    """Words of the vocabulary, and how many tokens the chat template puts around a message."""

    def __init__(self, words: Sequence[str], template: int) -> None:
        self._words = words
        self._template = template

    def text(self, ids: Sequence[int], count: int) -> str:
        """`count` words: one per id, again from the first where there are more words than ids."""
        size = len(self._words)
        return "".join(f" {self._words[ids[i % len(ids)] % size]}" for i in range(count))

    async def chat(self, ids: Sequence[int], tokenizer: Tokenizer) -> list[Message]:
        """One user's message that is `len(ids)` tokens with the template, by the server's count.

        Raises Failure when the template alone is longer, or no text comes out exact.
        """
        wanted = len(ids)
        count = wanted - self._template
        for _ in range(TRIES):
            if count < 1:
                raise Failure(
                    f"a chat of {wanted} tokens has no room for a message: the model's chat template "
                    f"takes about {self._template}; next: ask for longer prompts, or completions"
                )
            messages = [Message("user", self.text(ids, count))]
            found = (await tokenizer.chat(messages)).count
            if found == wanted:
                return messages
            count += wanted - found
        raise Failure(
            f"no chat of exactly {wanted} tokens found in {TRIES} tries, the last has {found}; {INSTEAD}"
        )


async def learn(tokenizer: Tokenizer, ids: Ids) -> Words:
    """Find words among `ids`: always the same ones of the same tokenizer. Raises Failure."""
    text = await tokenizer.detokenize(ids.draw(SAMPLE, Random(0)))
    words = await _whole(tokenizer, text)
    # Those that stay whole beside others of their kind.
    words = await _whole(tokenizer, "".join(f" {word}" for word in words)) if words else []
    if len(words) < FEWEST:
        raise Failure(
            f"only {len(words)} words of the model's vocabulary found between token ids "
            f"{ids.lowest} and {ids.highest}, too few to make chats of exact length; {INSTEAD}"
        )
    one = await tokenizer.chat([Message("user", f" {words[0]}")])
    return Words(words, one.count - 1)


async def _whole(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words that are single tokens of the text, sorted."""
    tokens = (await tokenizer.text(text, special=False, strings=True)).token_strs
    if tokens is None:
        raise Failure(f"the server's /tokenize does not return token_strs; {INSTEAD}")
    return sorted({match[1] for token in tokens if (match := _WORD.fullmatch(token))})
