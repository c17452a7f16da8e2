import asyncio
import datetime
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fakes.http_front_end import FakeFrontEnd, Handler, chunks, completion, streamed
from fakes.virtual_time import run as run_virtually
from vdisagg.bench import client
from vdisagg.bench.asks import Ask
from vdisagg.bench.bodies import body as body_of
from vdisagg.bench.client import Target, connections, stream
from vdisagg.bench.samples import Sample

ASK = Ask([5, 6, 7], 4)
BODY = body_of("m", ASK, endpoint="completions", running_usage=True)


def connection(request: web.Request) -> asyncio.Transport:
    """The way back to the client, under what aiohttp writes."""
    assert request.transport
    return request.transport


def asked(
    answer: Handler | None = None, *, body: bytes = BODY, expected: int = 4, **target: Any
) -> Sample:
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
    assert (found.failed_s, found.end_s) == (None, found.last_s)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_f02_events_that_are_split_over_reads_are_whole_again(cut: int) -> None:
    async def split(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, chunks(body), cut=cut)

    assert asked(split).output_tokens == 4
    assert asked(split).failure is None


def test_an_http_error_is_a_failure_with_the_front_ends_words() -> None:
    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    found = asked(refuse)
    assert (found.failure, found.detail, found.first_s) == ("HTTP 404", "no such model", None)


def test_a_connection_that_is_cut_is_a_failure() -> None:
    async def cut(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 10_000
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
        connection(request).close()
        return response

    found = asked(cut)
    assert found.failure == "connection lost"
    assert found.failed_s is not None
    assert found.last_s is not None
    assert found.sent_s <= found.last_s <= found.failed_s


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"]
)
def test_what_is_no_http_is_a_failure(said: bytes) -> None:
    async def strange(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        connection(request).write(said)
        connection(request).close()
        return web.Response()

    found = asked(strange)
    assert found.failure == "connection lost"
    assert found.detail


@pytest.mark.parametrize("lines", [b"", b"Trailer: x\r\n"])
def test_f02_chunks_that_are_cut_anywhere_and_have_trailers_are_whole(lines: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = b'data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n'
    wire = head + b"3;x=y\r\n" + data[:3] + b"\r\n%x\r\n" % len(data[3:]) + data[3:]
    wire += b"\r\n0\r\n" + lines + b"\r\n"

    async def bytewise(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        for at in range(len(wire)):
            connection(request).write(wire[at : at + 1])
            await asyncio.sleep(0)
        connection(request).close()
        return web.Response()

    found = asked(bytewise, expected=0)
    assert (found.failure, found.output_tokens) == (None, 1)


def test_a_redirection_is_a_failure_and_is_not_followed() -> None:
    async def elsewhere(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/v1/chat/completions")

    assert asked(elsewhere).failure == "HTTP 307"


def test_no_packing_is_asked_for() -> None:
    async def main() -> dict[str, str]:
        front_end = FakeFrontEnd()
        async with (
            front_end.serving(),
            connections(Target(url=front_end.url, model="m")) as session,
        ):
            await stream(session, BODY)
        return front_end.headers[0]

    assert "Accept-Encoding" not in asyncio.run(main())


def test_a_stream_that_ends_early_is_a_failure() -> None:
    async def short(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, chunks(body)[:2], done=False)

    assert asked(short).failure == "cut short"


def test_an_answer_that_never_comes_is_a_timeout() -> None:
    async def silent(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    found = asked(silent, request_timeout_s=0.05)
    assert found.failure == "timeout"
    assert found.end_s >= found.sent_s + 0.05


def test_nobody_there_is_a_failure_not_a_crash() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def main() -> Sample:
        async with connections(Target(url=f"http://127.0.0.1:{port}", model="m")) as session:
            return await stream(session, BODY)

    assert asyncio.run(main()).failure == "cannot connect"


def test_chat_is_timed_by_its_content_and_reasoning() -> None:
    async def chat(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
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


def timed(*steps: tuple[float, object]) -> Handler:
    """An answer whose events are written at these seconds; bytes are written as they are."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        clock = asyncio.get_running_loop().time
        began = clock()
        response = web.StreamResponse()
        await response.prepare(request)
        for at, event in steps:
            await asyncio.sleep(began + at - clock())
            data = (
                event if isinstance(event, bytes) else b"data: %s\n\n" % json.dumps(event).encode()
            )
            await response.write(data)
        return response

    return answer


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


def test_f02_over_the_wire_times_are_those_of_tokens_and_of_nothing_else() -> None:
    three = {**delta(content="Yes it is"), "usage": {"completion_tokens": 4}}
    last = json.dumps({**delta(content="!"), "usage": {"completion_tokens": 5}}).encode()
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
    answer = timed(
        (0.010, {**delta(role="assistant", content=""), "usage": {"completion_tokens": 0}}),
        (0.020, {"choices": []}),
        (0.200, {**delta(reasoning="Hm"), "usage": {"completion_tokens": 1}}),
        (0.500, three),
        (0.550, b"data: " + last[:20]),
        (0.600, last[20:] + b"\n\n"),
        (0.900, usage),
        (1.000, b"data: [DONE]\n\n"),
    )

    async def main() -> Sample:
        front_end = FakeFrontEnd()
        front_end.answer = answer
        async with (
            front_end.serving(),
            connections(Target(url=front_end.url, model="m")) as session,
        ):
            return await stream(session, b"{}", path="/v1/chat/completions", expected_tokens=5)

    found = run_virtually(main(), settle_s=0.005)
    assert found.failure is None
    assert found.ttft_s == pytest.approx(0.2)
    assert found.e2e_s == pytest.approx(0.6)
    assert found.gaps_s == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert found.tpot_s == pytest.approx(0.1)


def peers_of_two_requests() -> list[object]:
    """Our end of the connection of each, one after the other."""
    peers: list[object] = []

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        peers.append(connection(request).get_extra_info("peername"))
        return await completion(request, body)

    async def main() -> None:
        front_end = FakeFrontEnd()
        front_end.answer = answer
        async with (
            front_end.serving(),
            connections(Target(url=front_end.url, model="m")) as session,
        ):
            for _ in range(2):
                assert (await stream(session, BODY)).failure is None

    asyncio.run(main())
    return peers


def test_a_connection_is_used_again_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "KEEP_ALIVE_S", 60.0)
    first, second = peers_of_two_requests()
    assert first == second


def test_no_connection_is_used_again_that_has_been_idle_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "KEEP_ALIVE_S", 0.0)
    first, second = peers_of_two_requests()
    assert first != second


def test_idle_connections_are_closed_before_vllm_does_it() -> None:
    assert client.KEEP_ALIVE_S < 5.0


def test_a_host_is_found_by_its_name() -> None:
    async def main() -> Sample:
        front_end = FakeFrontEnd()
        async with front_end.serving():
            url = front_end.url.replace("127.0.0.1", "localhost")
            async with connections(Target(url=url, model="m")) as session:
                return await stream(session, BODY, expected_tokens=4)

    assert asyncio.run(main()).failure is None


def test_a_name_is_looked_up_once_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    asked_for: list[object] = []

    def counted(host: str | bytes | None, *args: Any, **kwargs: Any) -> Any:
        asked_for.append(host)
        return real(host, *args, **kwargs)

    async def main() -> None:
        front_end = FakeFrontEnd()
        async with front_end.serving():
            monkeypatch.setattr(socket, "getaddrinfo", counted)
            url = front_end.url.replace("127.0.0.1", "localhost")
            async with connections(Target(url=url, model="m")) as session:
                assert asked_for == ["localhost"]
                await asyncio.gather(*(stream(session, BODY) for _ in range(3)))

    asyncio.run(main())
    assert asked_for == ["localhost"]


def test_a_name_that_nobody_has_is_a_failure_not_a_crash() -> None:
    async def main() -> Sample:
        async with connections(Target(url="http://no-such-host.invalid", model="m")) as session:
            return await stream(session, BODY)

    found = asyncio.run(main())
    assert found.failure == "cannot connect"
    assert found.detail.startswith("no-such-host.invalid:80: ")


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@pytest.mark.parametrize("trusted", [True, False])
def test_https_is_spoken_with_servers_that_are_trusted_and_no_others(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def main() -> Sample:
        front_end = FakeFrontEnd()
        async with front_end.serving(tls=context):
            url = front_end.url.replace("127.0.0.1", "localhost")
            async with connections(Target(url=url, model="m")) as session:
                return await stream(session, BODY, expected_tokens=4)

    found = asyncio.run(main())
    if trusted:
        assert (found.failure, found.output_tokens) == (None, 4)
    else:
        assert found.failure == "cannot connect"
        assert "certificate" in found.detail


def test_the_key_travels_in_the_header() -> None:
    async def main() -> dict[str, str]:
        front_end = FakeFrontEnd()
        async with (
            front_end.serving(),
            connections(Target(url=front_end.url, model="m", api_key="secret")) as session,
        ):
            await stream(session, BODY)
        return front_end.headers[0]

    assert asyncio.run(main())["Authorization"] == "Bearer secret"
