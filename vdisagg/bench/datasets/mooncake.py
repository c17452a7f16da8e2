"""Requests of a trace in Mooncake's form: lengths, the times at which they came, prefixes they share.

A line is {"timestamp": milliseconds, "input_length": tokens, "output_length": tokens, "hash_ids":
[...]}. Each hash id stands for 512 tokens of the prompt, the last one for what is left of them
(kvcache-ai/Mooncake, FAST25-release); requests whose ids begin alike share so much of a prefix.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec

from vdisagg.bench.asks import MOST_REQUESTS, Ask
from vdisagg.bench.datasets.files import Entry
from vdisagg.bench.datasets.random import Ids
from vdisagg.errors import UsageError

BLOCK_TOKENS = 512


class Request(msgspec.Struct, frozen=True):
    """One line of a trace."""

    line: int
    due_s: float
    """Since the first request of the trace."""
    input_len: int
    output_len: int
    hash_ids: list[int]


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def requests(
    path: Path, entries: list[Entry], *, block_tokens: int = BLOCK_TOKENS
) -> tuple[list[Request], int]:
    """The usable ones in the order of their times, and how many have no prompt or no answer.

    Raises UsageError naming the line that is none, or whose hash ids are for other blocks: one is
    expected per `block_tokens`, where what is left at the end may have one or not. Without any the
    request shares its prompt with nobody.
    """
    lines = [(entry.line, _line(path, entry, block_tokens)) for entry in entries]
    lines.sort(key=lambda numbered: numbered[1].timestamp)
    usable = [(n, line) for n, line in lines if line.input_length > 0 < line.output_length]
    begin = usable[0][1].timestamp if usable else 0.0
    found = [
        Request(
            number,
            (line.timestamp - begin) / 1000,
            line.input_length,
            line.output_length,
            line.hash_ids,
        )
        for number, line in usable
    ]
    return found, len(lines) - len(usable)


def _line(path: Path, entry: Entry, block_tokens: int) -> _Line:
    try:
        line = msgspec.json.decode(entry.raw, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"{path}:{entry.line}: not a trace's request: {exc}; expected is "
            '{"timestamp": milliseconds, "input_length": tokens, "output_length": tokens, '
            '"hash_ids": [...]}'
        ) from exc
    whole, left = divmod(line.input_length, block_tokens)
    if len(line.hash_ids) not in (0, whole, whole + bool(left)):
        raise UsageError(
            f"{path}:{entry.line}: {len(line.hash_ids)} hash_ids for {line.input_length} tokens; "
            f"expected is one per {block_tokens} tokens, so {whole + bool(left)}"
        )
    return line


class Prompts:
    """The trace's prompts as token ids, fixed by the seed: the same hash id is the same tokens."""

    def __init__(self, *, seed: int, ids: Ids, block_tokens: int = BLOCK_TOKENS) -> None:
        self._seed = seed
        self._ids = ids
        self._block_tokens = block_tokens
        self._blocks: dict[int, list[int]] = {}

    def ask(self, request: Request, *, due_s: float) -> Ask:
        """The request, due then."""
        prompt: list[int] = []
        for hash_id in request.hash_ids:
            prompt += self._block(hash_id)
        left = request.input_len - len(prompt)
        if left > 0:  # what no hash id stands for is this request's alone
            prompt += self._drawn(f"line {request.line}", left)
        return Ask(prompt[: request.input_len], request.output_len, due_s)

    def _block(self, hash_id: int) -> list[int]:
        if hash_id not in self._blocks:
            self._blocks[hash_id] = self._drawn(f"block {hash_id}", self._block_tokens)
        return self._blocks[hash_id]

    def _drawn(self, what: str, count: int) -> list[int]:
        return self._ids.draw(count, Random(f"{self._seed} {what}"))


def asks(
    requests: list[Request],
    prompts: Prompts,
    *,
    count: int | None,
    duration_s: float | None = None,
    reuse: bool = False,
) -> list[Ask]:
    """The first `count` requests (None: all) that come within `duration_s` (None: at any time).

    With `reuse` the trace begins again at its end, the same prompts after one more mean gap, where
    more are asked for; a duration alone then needs a trace of more than one moment.
    """
    found: list[Ask] = []
    if not requests:
        return found
    last = requests[-1].due_s
    period = last + (last / (len(requests) - 1) if len(requests) > 1 else 0.0)
    endless = reuse and (count is not None or (duration_s is not None and period > 0))
    if endless and count is None and duration_s is not None:
        expected = len(requests) * duration_s / period
        if expected > MOST_REQUESTS:
            raise UsageError(
                f"--duration {duration_s:g} with --reuse is {expected:,.0f} requests of the trace; one "
                f"run has {MOST_REQUESTS:,} at most; next: ask for fewer"
            )
    begin = 0.0
    while True:
        for request in requests:
            due_s = begin + request.due_s
            if len(found) == count or (duration_s is not None and due_s >= duration_s):
                return found
            found.append(prompts.ask(request, due_s=due_s))
        if not endless:
            return found
        begin += period
