"""One request over the OpenAI streaming API, timed. The only module here that knows HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from vdisagg.bench.answer import Answer, error_text
from vdisagg.bench.samples import Sample
from vdisagg.bench.sse import EventStream

# A front end closes idle connections (vLLM after 5 s); we do so before it, so that no request is
# sent into a connection that is just being closed.
KEEP_ALIVE_S = 2.0


class Target(msgspec.Struct, frozen=True):
    """Where requests go."""

    url: str
    """Base URL, without /v1."""
    model: str
    api_key: str | None = None
    request_timeout_s: float = 600.0


@asynccontextmanager
async def connections(target: Target) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for any number of concurrent requests to the target."""
    headers = {"Content-Type": "application/json"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    async with aiohttp.ClientSession(
        base_url=target.url,
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=target.request_timeout_s),
    ) as session:
        yield session


def completion_body(
    model: str, prompt: list[int], *, output_len: int, running_usage: bool
) -> bytes:
    """A greedy completion of exactly `output_len` tokens.

    With `running_usage` every chunk tells how many tokens there are so far (an extension that vLLM
    has): the exact way to count where a chunk holds several, or half a character.
    """
    usage = {"include_usage": True}
    if running_usage:
        usage["continuous_usage_stats"] = True
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_len,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": usage,
        }
    )


async def stream(
    session: aiohttp.ClientSession,
    body: bytes,
    *,
    path: str = "/v1/completions",
    number: int = 0,
    due: float = 0.0,
    start: float | None = None,
    expected_tokens: int = 0,
) -> Sample:
    """Send one request and read its answer to the end; a failure is a sample too.

    `start` is what instants count from, on the running loop's clock (default: now).
    """
    clock = asyncio.get_running_loop().time
    sent = clock()
    origin = sent if start is None else start
    answer = Answer()
    try:
        async with session.post(path, data=body) as response:
            if response.status != 200:
                kind = f"HTTP {response.status}"
                answer.failure = (kind, error_text(await response.read()))
            else:
                events = EventStream()
                async for read in response.content.iter_any():
                    at = clock() - origin
                    for data in events.feed(read):
                        answer.take(data, at)
    except TimeoutError:
        answer.failure = ("timeout", f"no end within {session.timeout.total:g} s")
    except aiohttp.ClientConnectorError as exc:
        answer.failure = ("cannot connect", str(exc))
    except (aiohttp.ClientError, OSError) as exc:
        answer.failure = ("connection lost", f"{type(exc).__name__}: {exc}")
    return answer.sample(
        number=number, due=due, sent=sent - origin, expected_tokens=expected_tokens
    )
