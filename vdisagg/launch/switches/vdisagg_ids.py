"""ASGI middleware for the stock API server: refuses request ids that are too long, or no text, with a 400.

A client may choose a request's id, in the header `X-Request-Id` or in the body. The API server takes one
of any length and makes it part of the id that engines get; the controller refuses ids above the
same limit, but what it refuses the API server can only report as a failure of its own, a 500. It takes
line breaks in a body's id as well, which then stand in everybody's logs.

Loaded through `--middleware vdisagg_ids.RequestIds` from the switches' folder; the standard library only.
"""

from __future__ import annotations

import json
import re
import unicodedata
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
FIELD = re.compile(
    b'"%b"' % b"".join(rb"(?:%c|\\u00%02x)" % (code, code) for code in b"request_id"),
    re.IGNORECASE,
)
"""The field's name in JSON, letters written as such or by their numbers."""

NUL = b"\0"
"""JSON in UTF-8 has none; in UTF-16 and UTF-32, which are taken too, each brace has one beside it."""

NO_TEXT = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, halves of characters, and line breaks."""


class RequestIds:
    """Wraps an ASGI application."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            if name == HEADER and (fault := fault_of(value.decode(errors="replace"), len(value))):
                await refuse(send, f"the header X-Request-Id {fault}")
                return
        body = await read_body(receive)
        if body is not None and (fault := fault_in(body["body"])):
            await refuse(send, f"request_id {fault}")
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


def fault_in(body: bytes) -> str:
    """What is wrong with the id that a JSON body names, if any. Bodies without one are not parsed."""
    if NUL not in body and not FIELD.search(body):
        return ""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return ""  # the API server's to refuse
    chosen = request.get("request_id") if isinstance(request, dict) else None
    return fault_of(chosen, len(chosen)) if isinstance(chosen, str) else ""


def fault_of(chosen: str, length: int) -> str:
    """What is wrong with an id; empty where nothing is. `length`: in the API server's characters, which
    takes each byte of a header for one."""
    if length > MAX_ID:
        return f"is longer than {MAX_ID} characters; choose a shorter id"
    for character in chosen:
        if unicodedata.category(character) in NO_TEXT:
            return f"holds the control character {character!a}; choose an id without any"
    return ""


async def refuse(send: Send, what: str) -> None:
    """Answer 400, in the form of the API server's own errors."""
    error = {
        "message": what,
        "type": "BadRequestError",
        "param": "request_id",
        "code": 400,
    }
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
