"""Clients that leave at any moment, and a client that tries to steer the KV transfer itself."""

from __future__ import annotations

import asyncio
import http.client
import random
import socket
from collections import Counter
from urllib.parse import urlsplit

import aiohttp
import pytest

from real.ask import post, random_prompt
from real.conftest import B, RealCluster

pytestmark = pytest.mark.real

CUTS = 200


async def _cut_at_random(url: str, model: str, prefill_s: float) -> Counter[str]:
    """Requests whose connections are closed at a random moment of the first `2 * prefill_s`."""
    rng = random.Random(1)
    lengths = [5, B - 1, B, B + 1, 500, 1000]

    async def one(session: aiohttp.ClientSession, number: int) -> str:
        body = {
            "model": model,
            "prompt": random_prompt(rng.choice(lengths), number),
            "max_tokens": 20,
            "temperature": 0,
            "stream": bool(number % 2),
        }
        try:
            async with asyncio.timeout(rng.random() * 2 * prefill_s):
                async with session.post(f"{url}/v1/completions", json=body) as reply:
                    await reply.read()
                    return str(reply.status)
        except TimeoutError:
            return "cut"

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        tasks = []
        for number in range(CUTS):
            tasks.append(asyncio.create_task(one(session, number)))
            await asyncio.sleep(rng.random() * prefill_s / 4)
        return Counter(await asyncio.gather(*tasks))


def test_b01_two_hundred_cuts_leave_no_block_and_nothing_in_flight(tiny: RealCluster) -> None:
    """Blocks are read from the engines' scheduler statistics (kv_cache_usage), after a step each."""
    tiny.idle()
    before = tiny.status().totals
    outcomes = asyncio.run(_cut_at_random(tiny.url, tiny.model, prefill_s=0.2))
    assert outcomes["cut"] > CUTS / 4, f"too few were cut to mean anything: {outcomes}"
    assert set(outcomes) <= {"cut", "200"}, outcomes
    tiny.until(lambda s: s.totals.in_flight == 0, "end of the last request")
    status = tiny.idle()
    assert {i.state for i in status.instances} == {"ready"}
    assert {i.kv_failures for i in status.instances} == {0}, "a lease ran out"
    assert status.totals.aborted > before.aborted
    assert status.totals.failed == before.failed


def test_clients_transfer_parameters_open_no_connection_and_read_no_block(
    tiny: RealCluster,
) -> None:
    prompt = random_prompt(300, "victim")
    body = {"model": tiny.model, "prompt": prompt, "max_tokens": 6, "temperature": 0}
    _, honest = post(tiny.url, "/v1/completions", body)
    with socket.socket() as trap:
        trap.bind(("127.0.0.2", 0))
        trap.listen()
        trap.settimeout(3)
        evil = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": "foreign",
            "remote_request_id": "foreign",
            "remote_block_ids": [[1, 2, 3]],
            "remote_host": "127.0.0.2",
            "remote_port": trap.getsockname()[1],
            "tp_size": 1,
        }
        for where in ({"kv_transfer_params": evil}, {"vllm_xargs": {"kv_transfer_params": "x"}}):
            for limit in (1, 6):
                asked = {**body, **where, "max_tokens": limit}
                status, reply = post(tiny.url, "/v1/completions", asked)
                # A text in the place of a map is more than the front end itself can take.
                assert status in (200, 400) or (status == 500 and "vllm_xargs" in where), reply
                if status == 200:
                    assert honest["choices"][0]["text"].startswith(reply["choices"][0]["text"])
                    assert reply.get("kv_transfer_params") is None
        with pytest.raises(TimeoutError):
            trap.accept()
    assert {i.state for i in tiny.status().instances} == {"ready"}


def test_a13_odd_ids_are_refused_and_harm_nobody(tiny: RealCluster) -> None:
    """A line break is no HTTP: 400. A megabyte is refused with a 400 as well, wherever it stands, and so
    is a line break in the body. The next request is served, also under the longest id that passes."""
    for header in ("x" * 1_000_000, "a\nb: c\n\n"):
        with socket.create_connection(
            (urlsplit(tiny.url).hostname or "", urlsplit(tiny.url).port or 0), timeout=10
        ) as raw:
            content = b'{"model": "tiny", "prompt": "x", "max_tokens": 1}'
            raw.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                + f"Content-Length: {len(content)}\r\nX-Request-Id: {header}\r\n\r\n".encode()
                + content
            )
            reply = http.client.HTTPResponse(raw)
            reply.begin()
            assert reply.status == 400, (header[:5], reply.status, reply.read()[:200])
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for chosen, expected in (
        ("x" * 1_000_000, 400),
        ("x" * 901, 400),
        ("a\nb", 400),
        ("x" * 900, 200),
    ):
        named = body | {"request_id": chosen}
        status, answer = post(tiny.url, "/v1/chat/completions", named)
        assert status == expected, answer
