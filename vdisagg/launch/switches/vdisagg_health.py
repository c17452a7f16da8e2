"""ASGI middleware for the stock API server: GET /health tells what the controller says of the cluster.

vLLM's own /health knows its engine only, which the controller plays and which is always well. With this
it answers 503 and the reason while no link works, and when the controller has fallen silent; else vLLM
answers, as always. Like vLLM's it asks for no API key: user's middleware comes before vLLM's.

Loaded through `--middleware vdisagg_health.Health` from the switches' folder, beside the switch
VDISAGG_CHANNEL; the standard library only.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import vdisagg_sockets  # type: ignore[import-not-found]  # lies beside this file

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdisagg_channel import Channel  # type: ignore[import-not-found]  # lies beside this file


class Health:
    """Wraps an ASGI application."""

    def __init__(
        self,
        app: Any,
        channel: Channel = vdisagg_sockets.CHANNEL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._channel = channel
        self._clock = clock

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        reason = self._channel.unhealthy(now=self._clock()) if asks_for_health(scope) else None
        if reason is None:
            await self._app(scope, receive, send)
            return
        body = json.dumps({"status": "unhealthy", "reason": reason}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def asks_for_health(scope: dict[str, Any]) -> bool:
    """Whether this is GET /health, under a root path or not."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    return bool(scope["path"].removeprefix(scope.get("root_path", "")) == "/health")
