"""Prompts people have written, and how long their answers were: files in ShareGPT's or OpenAI's form.

An entry is {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}, or
{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}. Of each the
first turn of the human is the prompt, and the answer right after it says how long ours shall be.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from vdisagg.bench.asks import Ask, Message
from vdisagg.bench.datasets.files import Entry
from vdisagg.bench.datasets.lengths import Lengths
from vdisagg.bench.tokens import Tokenizer, each
from vdisagg.errors import UsageError

HUMAN = {"human", "user"}
MODEL = {"gpt", "chatgpt", "assistant", "model"}


class Dialogue(msgspec.Struct, frozen=True):
    """What of an entry is used."""

    prompt: str
    answer: str
    """Empty where the file has none."""


class _Turn(msgspec.Struct):
    sender: Any = msgspec.field(name="from", default=None)
    value: Any = None
    role: Any = None
    content: Any = None

    def by(self, whom: set[str]) -> bool:
        name = self.sender or self.role
        return isinstance(name, str) and name in whom

    def text(self) -> str:
        """Empty where it is blank or no text, as a list of pictures is not."""
        text = self.content if self.value is None else self.value
        return text if isinstance(text, str) and text.strip() else ""


class _Entry(msgspec.Struct):
    conversations: list[_Turn] | None = None
    messages: list[_Turn] | None = None


def dialogues(path: Path, entries: list[Entry]) -> tuple[list[Dialogue], int]:
    """The usable ones, and how many have no human's text. Raises UsageError naming file and line."""
    found = [dialogue for entry in entries if (dialogue := _dialogue(path, entry))]
    return found, len(entries) - len(found)


def _dialogue(path: Path, entry: Entry) -> Dialogue | None:
    try:
        read = msgspec.json.decode(entry.raw, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"{path}:{entry.line}: not a conversation: {exc}; expected is "
            '{"conversations": [{"from": "human", "value": ...}, ...]} or '
            '{"messages": [{"role": "user", "content": ...}, ...]}'
        ) from exc
    turns = read.conversations or read.messages or []
    for turn, after in zip_longest(turns, turns[1:]):
        if turn.by(HUMAN):
            answer = after.text() if after and after.by(MODEL) else ""
            return Dialogue(turn.text(), answer) if turn.text() else None
    return None


def given(dialogues: list[Dialogue], *, chat: bool, output_len: Lengths, rng: Random) -> list[Ask]:
    """Requests whose answers are as long as the user says, whatever the file's are."""
    return [Ask(_prompt(found, chat), output_len.draw(rng)) for found in dialogues]


async def counted(
    dialogues: list[Dialogue], count: int | None, *, chat: bool, tokenizer: Tokenizer
) -> tuple[list[Ask], int]:
    """The first `count` requests (None: all), with answers as long as the file's are to the server.

    Only as many are counted as are needed. Also returned is how many were left out, as they have no
    answer or are longer than the model takes. Raises Failure when the server can't count.
    """

    async def one(dialogue: Dialogue) -> Ask | None:
        prompt = _prompt(dialogue, chat)
        tokens = await (
            tokenizer.text(prompt) if isinstance(prompt, str) else tokenizer.chat(prompt)
        )
        answer = (await tokenizer.text(dialogue.answer, special=False)).count
        fits = answer and tokens.count + answer <= tokens.max_model_len
        return Ask(prompt, answer) if fits else None

    found: list[Ask] = []
    tried = 0
    while tried < len(dialogues) and (count is None or len(found) < count):
        some = dialogues[tried:] if count is None else dialogues[tried:][: count - len(found)]
        answered = [dialogue for dialogue in some if dialogue.answer]
        found += [ask for ask in await each(one, answered) if ask]
        tried += len(some)
    return found, tried - len(found)


def _prompt(dialogue: Dialogue, chat: bool) -> str | list[Message]:
    return [Message("user", dialogue.prompt)] if chat else dialogue.prompt
