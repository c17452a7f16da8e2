"""One request over the OpenAI streaming API, timed. The only module here that knows the API."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import msgspec

from vdisagg import __version__
from vdisagg.bench.answer import Answer, error_text
from vdisagg.bench.bodies import PATHS
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


class Connections(msgspec.Struct, frozen=True):
    """To one server, as many as are needed at once; each is kept for a next request."""

    http: aiohttp.ClientSession
    timeout_s: float
    """For one request, from connecting to the end of its response."""


@asynccontextmanager
async def connections(target: Target) -> AsyncIterator[Connections]:
    """For any number of concurrent requests to the target."""
    url = urlsplit(target.url)
    tls = ssl.create_default_context() if url.scheme == "https" else None
    names = _Names()
    with contextlib.suppress(OSError):  # failing is left to the requests
        await names.resolve(url.hostname or "", url.port or (443 if tls else 80))
    headers = {"Content-Type": "application/json", "User-Agent": f"vdisagg/{__version__}"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    async with aiohttp.ClientSession(
        base_url=target.url.rstrip("/") + "/",
        headers=headers,
        skip_auto_headers=["Accept-Encoding"],  # packing a stream would be the server's time
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=KEEP_ALIVE_S,
            resolver=names,
            use_dns_cache=False,
            ssl=tls or True,
        ),
        timeout=aiohttp.ClientTimeout(total=None),  # `stream` has one, which costs a chunk nothing
    ) as session:
        yield Connections(session, target.request_timeout_s)


class _Names(aiohttp.ThreadedResolver):
    """Looks each name up once, not for each connection."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[tuple[str, int], list[aiohttp.abc.ResolveResult]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[aiohttp.abc.ResolveResult]:
        if (host, port) not in self._found:
            self._found[host, port] = await super().resolve(host, port, family)
        return self._found[host, port]


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
    clock = asyncio.get_running_loop().time
    sent = clock()
    origin = sent if start is None else start
    answer = Answer()
    events = EventStream()
    headers = {"X-Request-Id": request_id} if request_id else None
    try:
        async with (
            asyncio.timeout(session.timeout_s),
            session.http.post(
                path.lstrip("/"), data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            if response.status == 200:
                while read := await response.content.readany():
                    at = clock() - origin
                    for data in events.feed(read):
                        answer.take(data, at)
            else:
                answer.failure = (f"HTTP {response.status}", error_text(await response.read()))
    except TimeoutError:
        answer.failure = ("timeout", f"no end within {session.timeout_s:g} s")
    except aiohttp.ClientConnectorError as exc:
        answer.failure = ("cannot connect", f"{exc.host}:{exc.port}: {_why(exc.os_error)}")
    except (aiohttp.ClientError, OSError) as exc:
        answer.failure = ("connection lost", str(exc) or type(exc).__name__)
    return answer.sample(
        number=number,
        request_id=request_id,
        due=due,
        sent=sent - origin,
        ended=clock() - origin,
        expected_tokens=expected_tokens,
    )


def _why(error: OSError) -> str:
    if isinstance(error, (ssl.SSLError, socket.gaierror)) or not error.errno:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)  # asyncio's own text is the call that failed
