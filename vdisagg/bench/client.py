"""One request over the OpenAI streaming API, timed. The only module here that knows the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from vdisagg.bench.answer import Answer, error_text
from vdisagg.bench.bodies import PATHS
from vdisagg.bench.connections import CannotConnect, ConnectionLost, Connections
from vdisagg.bench.samples import Sample
from vdisagg.bench.sse import EventStream


class Target(msgspec.Struct, frozen=True):
    """Where requests go."""

    url: str
    """Base URL, without /v1."""
    model: str
    api_key: str | None = None
    request_timeout_s: float = 600.0


@asynccontextmanager
async def connections(target: Target) -> AsyncIterator[Connections]:
    """For any number of concurrent requests to the target."""
    session = Connections(target.url, api_key=target.api_key, timeout_s=target.request_timeout_s)
    await session.resolve()
    try:
        yield session
    finally:
        session.close()


async def stream(
    session: Connections,
    body: bytes,
    *,
    path: str = PATHS["completions"],
    number: int = 0,
    request_id: str = "",
    due: float = 0.0,
    start: float | None = None,
    expected_tokens: int = 0,
) -> Sample:
    """Send one request and read its answer to the end; a failure is a sample too.

    `path`: the endpoint that `body` is for. `request_id` goes out as X-Request-Id, by
    which servers' logs and our controller know the request; without one, none is sent. `start` is
    what instants count from, on the running loop's clock (default: now).
    """
    sent = asyncio.get_running_loop().time()
    origin = sent if start is None else start
    answer = Answer()
    events = EventStream()
    refusal: list[bytes] = []

    def take(status: int, piece: bytes, at: float) -> None:
        if status == 200:
            for data in events.feed(piece):
                answer.take(data, at - origin)
        else:
            refusal.append(piece)

    try:
        status = await session.post(path, body, take, request_id=request_id)
        if status != 200:
            answer.failure = (f"HTTP {status}", error_text(b"".join(refusal)))
    except TimeoutError:
        answer.failure = ("timeout", f"no end within {session.timeout_s:g} s")
    except CannotConnect as exc:
        answer.failure = ("cannot connect", str(exc))
    except ConnectionLost as exc:
        answer.failure = ("connection lost", str(exc))
    return answer.sample(
        number=number,
        request_id=request_id,
        due=due,
        sent=sent - origin,
        expected_tokens=expected_tokens,
    )
