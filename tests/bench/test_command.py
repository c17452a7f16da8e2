"""`vdisagg bench` as a command: its exit code, and what it prints and saves."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web
from typer.testing import CliRunner

from fakes.http_front_end import FakeFrontEnd
from vdisagg.cli import app

LOAD = ["--num-requests", "3", "--input-len", "5", "--output-len", "2", "--warmup", "0", "--json"]


@pytest.fixture
def front_end() -> Iterator[FakeFrontEnd]:
    """One that serves from a thread, for the command has an event loop of its own."""
    fake = FakeFrontEnd()
    up = threading.Event()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with fake.serving():
            up.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert up.wait(10)
    yield fake
    loop.call_soon_threadsafe(end.set)
    thread.join(10)
    loop.close()


def bench(fake: FakeFrontEnd, *more: str) -> tuple[int, dict]:
    words = ["bench", "--url", fake.url, "--model", "m", *LOAD, *more]
    result = CliRunner().invoke(app, words)
    return result.exit_code, json.loads(result.stdout)


def test_all_answered_is_exit_code_0_and_the_file_is_written(front_end, tmp_path) -> None:
    path = tmp_path / "run.json"
    code, report = bench(front_end, "--save", str(path))
    assert (code, report["finished"], report["output_tokens"]) == (0, 3, 6)
    saved = json.loads(path.read_text())
    assert saved["report"] == report
    assert len(saved["samples"]) == 3


def test_any_failed_request_is_exit_code_1(front_end) -> None:
    good = front_end.answer

    async def one_fails(request, body):
        if len(front_end.bodies) == 2:
            return web.Response(status=503, text="busy")
        return await good(request, body)

    front_end.answer = one_fails
    code, report = bench(front_end)
    assert (code, report["finished"], report["failed"]) == (1, 2, 1)
    assert report["failures"] == [{"kind": "HTTP 503", "count": 1, "example": "busy"}]
