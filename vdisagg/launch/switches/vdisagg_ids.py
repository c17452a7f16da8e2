"""ASGI middleware for the stock API server: refuses request ids that are too long with a 400.

A client may choose a request's id, in the header `X-Request-Id` or in the body. The API server takes one
of any length and makes it part of the id that engines get; the controller refuses ids above the
same limit, but what it refuses the API server can only report as a failure of its own, a 500.

Loaded through `--middleware vdisagg_ids.LongIds` from the switches' folder; the standard library only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Message = dict[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

MAX_ID = 900
"""Characters; a prefix such as `chatcmpl-` and a number per choice join it before the controller's
limit of 1024 applies."""

HEADER = b"x-request-id"
FIELD = b'"request_id"'


class LongIds:
    """Wraps an ASGI application."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if any(name == HEADER and len(value) > MAX_ID for name, value in scope["headers"]):
            await refuse(send, "the header X-Request-Id")
            return
        body = await read_body(receive)
        if body is not None and too_long(body["body"]):
            await refuse(send, "request_id")
            return
        await self._app(scope, replay(body, receive), send)


async def read_body(receive: Receive) -> Message | None:
    """The whole body as one message; None when the client has left before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def replay(body: Message | None, receive: Receive) -> Receive:
    """A `receive` that gives the body that has been read, then what comes after it."""
    ready = [{"type": "http.disconnect"} if body is None else body]

    async def receive_again() -> Message:
        return ready.pop() if ready else await receive()

    return receive_again


def too_long(body: bytes) -> bool:
    """Whether a JSON body names an id that is too long. Bodies without one are not parsed."""
    if len(body) <= MAX_ID or FIELD not in body:
        return False
    try:
        request = json.loads(body)
    except ValueError:
        return False  # the API server's to refuse
    chosen = request.get("request_id") if isinstance(request, dict) else None
    return isinstance(chosen, str) and len(chosen) > MAX_ID


async def refuse(send: Send, what: str) -> None:
    """Answer 400, in the form of the API server's own errors."""
    error = {
        "message": f"{what} is longer than {MAX_ID} characters; choose a shorter id",
        "type": "BadRequestError",
        "param": "request_id",
        "code": 400,
    }
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
