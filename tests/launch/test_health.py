"""The middleware that answers GET /health in the controller's stead, without sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fakes.switches import load
from vdisagg.control.channel import Control, Health, control

load("vdisagg_channel")
load("vdisagg_sockets")
HEALTH = load("vdisagg_health")
CHANNEL = load("vdisagg_channel")
UNWELL = Health(ok=False, reason="no link works")


def ask(
    said: Health | None, *, later_s: float = 0.0, path: str = "/health", **scope: Any
) -> list[dict[str, Any]]:
    """What a client gets `later_s` after the controller has spoken; vLLM itself answers 200."""
    channel = CHANNEL.Channel()
    if said is not None:
        channel.take(control(Control(health=said)), now=100.0)
    sent: list[dict[str, Any]] = []

    async def vllm(scope: Any, receive: Any, send: Any) -> None:
        await send({"status": 200})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    middleware = HEALTH.Health(vllm, channel, clock=lambda: 100.0 + later_s)
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], **scope}
    asyncio.run(middleware(scope, None, send))
    return sent


def test_a_cluster_that_cannot_serve_answers_503_with_the_reason() -> None:
    start, body = ask(UNWELL)
    assert start["status"] == 503
    assert json.loads(body["body"]) == {"status": "unhealthy", "reason": "no link works"}
    assert dict(start["headers"]) == {
        b"content-type": b"application/json",
        b"content-length": str(len(body["body"])).encode(),
    }
    assert ask(UNWELL, path="/behind/health", root_path="/behind")[0]["status"] == 503


def test_a_controller_that_has_fallen_silent_is_unhealthy() -> None:
    assert ask(Health(ok=True), later_s=CHANNEL.SILENCE_S) == [{"status": 200}]
    start, body = ask(Health(ok=True), later_s=6.0)
    assert start["status"] == 503
    assert json.loads(body["body"])["reason"] == "the controller has said nothing for 6 s"


def test_else_and_where_nothing_has_been_said_yet_vllm_answers() -> None:
    assert ask(Health(ok=True)) == [{"status": 200}]
    assert ask(None, later_s=3600) == [{"status": 200}]


@pytest.mark.parametrize(
    "scope",
    [
        {"path": "/v1/models"},
        {"path": "/health/"},
        {"method": "POST"},
        {"type": "websocket"},
        {"type": "lifespan"},
    ],
)
def test_only_get_health_is_answered(scope: dict[str, Any]) -> None:
    assert ask(UNWELL, **scope) == [{"status": 200}]
