"""Asks the server how it would cut text into tokens: vLLM's /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from vdisagg.bench.answer import error_text
from vdisagg.bench.asks import Message
from vdisagg.errors import Failure

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""Calls in flight: a front end tokenizes on few threads, and more would only queue there."""

# Even a front end under load answers a call of these in well under a second.
TIMEOUT_S = 60.0

# vLLM closes idle connections after 5 s; closed before it, none is being closed while it is used.
KEEP_ALIVE_S = 2.0

INSTEAD = (
    "next: use completions, whose drawn prompts are token ids; for chats --dataset with a file of "
    "conversations and --output-len, which no server has to count for"
)


class Tokens(msgspec.Struct, frozen=True):
    """What a text is to the server."""

    count: int
    max_model_len: int
    """How many tokens prompt and answer may have together."""
    token_strs: list[str] | None = None
    """Each token in its vocabulary's writing, where that was asked for: "Ġword", "▁word"."""


class _Text(msgspec.Struct):
    prompt: str


class Tokenizer:
    """The tokenizer of one model on the server that `session` has as its base URL, ending in "/".

    Every method raises Failure when the server has no such endpoint or refuses.
    """

    def __init__(self, session: aiohttp.ClientSession, model: str) -> None:
        self._session = session
        self._model = model

    async def text(self, text: str, *, special: bool = True, strings: bool = False) -> Tokens:
        """A text; with `special` as a completion's prompt, so with what the model puts before it."""
        return await self._post(
            "tokenize",
            Tokens,
            prompt=text,
            add_special_tokens=special,
            return_token_strs=strings,
        )

    async def chat(self, messages: Sequence[Message]) -> Tokens:
        """A chat's messages within the chat template, up to where the answer begins."""
        return await self._post("tokenize", Tokens, messages=messages, add_generation_prompt=True)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return (await self._post("detokenize", _Text, tokens=ids)).prompt

    async def _post(self, path: str, kind: type[R], **fields: Any) -> R:
        data = msgspec.json.encode({"model": self._model, **fields})
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(path, data=data, headers=headers) as response:
                read = await response.read()
        except (aiohttp.ClientError, OSError) as exc:  # TimeoutError is an OSError
            raise Failure(f"/{path}: no answer: {exc or type(exc).__name__}") from exc
        where = f"{response.url}: HTTP {response.status}"
        if response.status in (404, 405, 501):
            raise Failure(
                f"{where}: {error_text(read).rstrip('.')}; tokens can only be counted by a server that has "
                f"/{path}, as vLLM does, and knows the model {self._model}; {INSTEAD}"
            )
        if response.status != 200:
            raise Failure(f"{where}: {error_text(read)}")
        try:
            return msgspec.json.decode(read, type=kind)
        except msgspec.DecodeError as exc:
            raise Failure(
                f"{where}: not what vLLM's /{path} answers: {exc}: "
                f"{read[:200].decode(errors='replace')}; {INSTEAD}"
            ) from exc


@asynccontextmanager
async def tokenizer(
    url: str, model: str, *, api_key: str | None = None
) -> AsyncIterator[Tokenizer]:
    """The tokenizer of a server, by its base URL without /v1, as long as the block lasts."""
    async with aiohttp.ClientSession(
        base_url=url.rstrip("/") + "/",
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        connector=aiohttp.TCPConnector(limit=AT_ONCE, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    ) as session:
        yield Tokenizer(session, model)


async def each(function: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """The function's result for each item, in order, `AT_ONCE` at a time.

    After an exception no further ones are begun; it is raised when those under way have ended.
    """
    results: list[R] = []
    for at in range(0, len(items), AT_ONCE):
        some = [function(item) for item in items[at : at + AT_ONCE]]
        for result in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
    return results
