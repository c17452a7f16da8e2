"""A front end on loopback that answers as vLLM's does, with what the test wants to go wrong."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class FakeFrontEnd:
    """`answer` may be replaced; `bodies`, `headers` and `request_ids` hold what came."""

    def __init__(self) -> None:
        self.answer: Handler = completion
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.request_ids: list[str] = []
        self.url = ""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.request_ids.append(request.headers.get("X-Request-Id", ""))
        return await self.answer(request, body)

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeFrontEnd]:
        app = web.Application()
        app.router.add_post("/v1/completions", self._handle)
        app.router.add_post("/v1/chat/completions", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


async def streamed(
    request: web.Request, events: list[object], *, cut: int = 10_000, done: bool = True
) -> web.StreamResponse:
    """The events as a stream, written in pieces of `cut` bytes that the client reads one by one."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    text = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    if done:
        text += b"data: [DONE]\n\n"
    for at in range(0, len(text), cut):
        await response.write(text[at : at + cut])
        await asyncio.sleep(0)
    return response


def chunks(body: dict[str, Any]) -> list[object]:
    """max_tokens chunks of one token each and the usage, as vLLM sends them."""
    asked = body["stream_options"]
    chat = "messages" in body
    prompt = len(body["messages"] if chat else body["prompt"])

    def usage(tokens: int) -> dict[str, int]:
        return {"prompt_tokens": prompt, "completion_tokens": tokens}

    events: list[object] = []
    for number in range(1, body["max_tokens"] + 1):
        piece = {"delta": {"content": "x"}} if chat else {"text": "x"}
        chunk: dict[str, object] = {"choices": [{"index": 0, **piece}]}
        if asked.get("continuous_usage_stats"):
            chunk["usage"] = usage(number)
        events.append(chunk)
    return [*events, {"choices": [], "usage": usage(body["max_tokens"])}]


async def completion(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """A good answer."""
    return await streamed(request, chunks(body))
