"""vLLM's /tokenize and /detokenize with a small vocabulary whose tokens melt and fall apart.

Token ids 1000 to 1999 are words or, every third, ends of words: " waa", " wab", "fac", " wad"... A
piece of text from one blank to the next is one token where it is a word, else one per character.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

LOWEST, HIGHEST = 1000, 1999
TEMPLATE = 7
"""Tokens that the chat template puts around one message; each further one has 4 more."""


def spelled(token: int) -> str:
    number = token - LOWEST
    end = chr(97 + number // 26 // 26) + chr(97 + number // 26 % 26) + chr(97 + number % 26)
    return f"f{end}" if number % 3 == 2 else f" w{end}"


SPELLINGS = {spelled(token): token for token in range(LOWEST, HIGHEST + 1)}


def tokens(text: str) -> list[str]:
    """The text's tokens, blanks as byte-level BPE writes them."""
    found: list[str] = []
    for piece in re.findall(r" ?[^ ]+| ", text):
        found += [piece] if piece in SPELLINGS else piece
    return [token.replace(" ", "Ġ") for token in found]


class FakeTokenizer:
    def __init__(
        self, *, has_tokenize: bool = True, strips: bool = False, even: bool = False, bos: int = 0
    ) -> None:
        self.has_tokenize = has_tokenize
        self.strips = strips
        """Whether the chat template strips messages, as Llama's does."""
        self.even = even
        """Whether chats have an even number of tokens: a template that no text fits exactly."""
        self.bos = bos
        """Tokens before a completion's prompt."""
        self.max_model_len = 4096
        self.calls: list[dict[str, Any]] = []
        self.url = ""

    def count(self, messages: Sequence[dict[str, str]]) -> int:
        contents = [m["content"].strip() if self.strips else m["content"] for m in messages]
        total = TEMPLATE + 4 * (len(messages) - 1) + sum(len(tokens(text)) for text in contents)
        return total + total % 2 if self.even else total

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(body)
        if body["model"] != "m":
            error = {"message": f"The model `{body['model']}` does not exist.", "code": 404}
            return web.json_response({"error": error}, status=404)
        strings = None
        if "messages" in body:
            count = self.count(body["messages"])
        else:
            strings = tokens(body["prompt"])
            count = len(strings) + (self.bos if body.get("add_special_tokens", True) else 0)
        wanted = body.get("return_token_strs")
        return web.json_response(
            {
                "count": count,
                "max_model_len": self.max_model_len,
                "tokens": [0] * count,
                "token_strs": strings if wanted else None,
            }
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(body)
        return web.json_response({"prompt": "".join(map(spelled, body["tokens"]))})

    def routes(self, app: web.Application) -> None:
        """The endpoints, for a front end that has others too."""
        if self.has_tokenize:
            app.router.add_post("/tokenize", self.tokenize)
            app.router.add_post("/detokenize", self.detokenize)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeTokenizer]:
        app = web.Application()
        self.routes(app)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
