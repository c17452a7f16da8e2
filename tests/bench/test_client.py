import asyncio
import socket

import pytest
from aiohttp import web

from fakes.http_front_end import FakeFrontEnd, chunks, streamed
from vdisagg.bench.asks import Ask
from vdisagg.bench.bodies import body as body_of
from vdisagg.bench.client import Target, connections, stream
from vdisagg.bench.samples import Sample

ASK = Ask([5, 6, 7], 4)
BODY = body_of("m", ASK, endpoint="completions", running_usage=True)


def asked(answer=None, *, body: bytes = BODY, expected: int = 4, **target) -> Sample:
    """The sample of one request to a fake front end that answers so."""

    async def main() -> Sample:
        front_end = FakeFrontEnd()
        if answer:
            front_end.answer = answer
        async with (
            front_end.serving(),
            connections(Target(url=front_end.url, model="m", **target)) as session,
        ):
            return await stream(session, body, expected_tokens=expected)

    return asyncio.run(main())


@pytest.mark.parametrize("running_usage", [True, False])
def test_a_stream_is_read_to_its_end(running_usage: bool) -> None:
    body = body_of("m", ASK, endpoint="completions", running_usage=running_usage)
    found = asked(body=body)
    assert found.failure is None
    assert (found.prompt_tokens, found.output_tokens) == (3, 4)
    assert found.gaps_s is not None
    assert len(found.gaps_s) == 3
    assert found.first_s is not None
    assert found.last_s is not None
    assert found.sent_s <= found.first_s <= found.last_s


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_f02_events_that_are_split_over_reads_are_whole_again(cut: int) -> None:
    async def split(request, body):
        return await streamed(request, chunks(body), cut=cut)

    assert asked(split).output_tokens == 4
    assert asked(split).failure is None


def test_an_http_error_is_a_failure_with_the_front_ends_words() -> None:
    async def refuse(request, body):
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    found = asked(refuse)
    assert (found.failure, found.detail, found.first_s) == ("HTTP 404", "no such model", None)


def test_a_connection_that_is_cut_is_a_failure() -> None:
    async def cut(request, body):
        response = web.StreamResponse()
        response.content_length = 10_000
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
        request.transport.close()
        return response

    assert asked(cut).failure == "connection lost"


def test_a_stream_that_ends_early_is_a_failure() -> None:
    async def short(request, body):
        return await streamed(request, chunks(body)[:2], done=False)

    assert asked(short).failure == "cut short"


def test_an_answer_that_never_comes_is_a_timeout() -> None:
    async def silent(request, body):
        await asyncio.sleep(3600)

    assert asked(silent, request_timeout_s=0.05).failure == "timeout"


def test_nobody_there_is_a_failure_not_a_crash() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def main() -> Sample:
        async with connections(Target(url=f"http://127.0.0.1:{port}", model="m")) as session:
            return await stream(session, BODY)

    assert asyncio.run(main()).failure == "cannot connect"


def test_chat_is_timed_by_its_content_and_reasoning() -> None:
    async def chat(request, body):
        deltas = [{"role": "assistant", "content": ""}, {"reasoning": "Hm"}, {"content": "Yes"}]
        events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        return await streamed(request, [*events, usage])

    async def main() -> Sample:
        front_end = FakeFrontEnd()
        front_end.answer = chat
        async with (
            front_end.serving(),
            connections(Target(url=front_end.url, model="m")) as session,
        ):
            return await stream(session, b"{}", path="/v1/chat/completions")

    found = asyncio.run(main())
    assert (found.output_tokens, found.failure) == (2, None)
    assert found.gaps_s is not None
    assert len(found.gaps_s) == 1


def test_the_key_travels_in_the_header() -> None:
    async def main() -> dict[str, str]:
        front_end = FakeFrontEnd()
        target = {"model": "m", "api_key": "secret"}
        async with (
            front_end.serving(),
            connections(Target(url=front_end.url, **target)) as session,
        ):
            await stream(session, BODY)
        return front_end.headers[0]

    assert asyncio.run(main())["Authorization"] == "Bearer secret"
