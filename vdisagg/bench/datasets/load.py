"""From what the user says of the data set to the requests of a run, whatever form it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from vdisagg.bench.asks import Ask
from vdisagg.bench.bodies import Endpoint
from vdisagg.bench.datasets import files, mooncake, random, sharegpt
from vdisagg.bench.datasets.lengths import Lengths, exactly
from vdisagg.bench.tokens import INSTEAD, Tokenizer, each
from vdisagg.bench.words import learn
from vdisagg.errors import Failure, UsageError

INPUT_LEN = exactly(1000)
OUTPUT_LEN = exactly(200)


class DataSet(msgspec.Struct, frozen=True, kw_only=True):
    """What requests are made of: drawn ones, or those of the file."""

    path: Path | None = None
    input_len: Lengths = INPUT_LEN
    """Of drawn prompts; a file has its own."""
    output_len: Lengths | None = None
    """None: a file's own, or OUTPUT_LEN where prompts are drawn."""
    prefix_len: int = 0
    turns: int = 1
    ids: random.Ids = random.Ids()
    reuse: bool = False
    """Whether a file with fewer requests than asked for begins again."""
    block_tokens: int = mooncake.BLOCK_TOKENS
    """How many tokens a trace's hash id stands for."""

    def shape(self) -> random.Shape:
        """Of drawn prompts. Raises UsageError naming the option that can't be."""
        shape = random.Shape(
            input_len=self.input_len,
            output_len=self.output_len or OUTPUT_LEN,
            prefix_len=self.prefix_len,
            turns=self.turns,
            ids=self.ids,
        )
        shape.check()
        return shape


class Load(msgspec.Struct, frozen=True):
    """The requests of a run."""

    asks: list[Ask]
    """In the order of sending. Those of a trace say when they are due, all others don't."""
    form: Literal["random", "conversations", "trace"]
    notes: list[str]
    """Sentences for the user: what was left out, how many are missing."""


async def asks(
    data: DataSet,
    count: int | None,
    *,
    seed: int,
    endpoint: Endpoint,
    tokenizer: Tokenizer | None = None,
    duration_s: float | None = None,
) -> Load:
    """`count` requests, fixed by `seed`, or fewer with a note where the file has fewer.

    None is as many as the file has. `duration_s` ends a trace, by its own clock, and nothing else.
    Conversations are taken in an order drawn from the seed, so that another one mostly finds others
    and not what the last run has left in the caches; a trace keeps its own. A tokenizer is needed
    for chats of drawn ids or of a trace, and for conversations' own output lengths.

    Raises UsageError naming option, or file and line; Failure when nothing is left to send, or the
    server can't count tokens.
    """
    if data.path is None:
        if count is None:
            raise UsageError("without --dataset the number of requests must be said")
        drawn = random.asks(count, data.shape(), Random(seed))
        return Load(await _for(endpoint, drawn, data, tokenizer), "random", [])
    form, entries = files.read(data.path)
    if form == "trace":
        found, notes = _trace(data, data.path, entries, count, seed, duration_s)
        found = await _for(endpoint, found, data, tokenizer)
    else:
        found, notes = await _conversations(
            data, data.path, entries, count, seed, endpoint == "chat", tokenizer
        )
    if not found:
        raise Failure("; ".join([f"{data.path}: holds no request that can be sent", *notes]))
    if count is not None and len(found) < count and duration_s is None:
        notes.append(
            f"{data.path} has {len(found)} of the {count} requests asked for; --reuse begins again"
        )
    return Load(found, form, notes)


def _trace(
    data: DataSet,
    path: Path,
    entries: list[files.Entry],
    count: int | None,
    seed: int,
    duration_s: float | None,
) -> tuple[list[Ask], list[str]]:
    requests, unusable = mooncake.requests(path, entries, block_tokens=data.block_tokens)
    prompts = mooncake.Prompts(seed=seed, ids=data.ids, block_tokens=data.block_tokens)
    found = mooncake.asks(requests, prompts, count=count, duration_s=duration_s, reuse=data.reuse)
    if data.output_len is not None:
        rng = Random(seed)
        found = [Ask(ask.prompt, data.output_len.draw(rng), ask.due_s) for ask in found]
    return found, _left_out(unusable, "without a prompt or an answer")


async def _conversations(
    data: DataSet,
    path: Path,
    entries: list[files.Entry],
    count: int | None,
    seed: int,
    chat: bool,
    tokenizer: Tokenizer | None,
) -> tuple[list[Ask], list[str]]:
    dialogues, unusable = sharegpt.dialogues(path, entries)
    notes = _left_out(unusable, "without a text from a human")
    rng = Random(seed)
    rng.shuffle(dialogues)
    if data.output_len is not None:
        found = sharegpt.given(dialogues[:count], chat=chat, output_len=data.output_len, rng=rng)
    elif tokenizer is None:
        raise UsageError(f"{path}: --output-len is needed where the server can't count tokens")
    else:
        found, left = await sharegpt.counted(dialogues, count, chat=chat, tokenizer=tokenizer)
        notes += _left_out(left, "without an answer, or longer than the model takes")
    if data.reuse and found and count is not None:
        found = (found * -(-count // len(found)))[:count]
    return found, notes


async def _for(
    endpoint: Endpoint, found: list[Ask], data: DataSet, tokenizer: Tokenizer | None
) -> list[Ask]:
    """Prompts of ids as they are for completions; for chats one message of as many tokens each."""
    if endpoint == "completions" or not found:
        return found
    if tokenizer is None:
        raise UsageError(f"chats of exact length need a server that counts tokens; {INSTEAD}")
    words = await learn(tokenizer, data.ids)

    async def chat(ask: Ask) -> Ask:
        return Ask(await words.chat(_ids(ask), tokenizer), ask.output_len, ask.due_s)

    return await each(chat, found)


def _ids(ask: Ask) -> Sequence[int]:
    return [part for part in ask.prompt if isinstance(part, int)]


def _left_out(count: int, why: str) -> list[str]:
    return [f"left out: {count} entries {why}"] if count else []
