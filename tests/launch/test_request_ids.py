"""The API server's middleware, between an application that echoes and a client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fakes.switches import load

Message = dict[str, Any]
IDS = load("vdisagg_ids")


async def echo(scope: Message, receive: Any, send: Any) -> None:
    """Answers with what it receives until the body ends or the client leaves."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            break
    await send({"type": message["type"], "status": 200, "body": body})


def ask(*chunks: bytes, header: bytes = b"", method: str = "POST", leaves: bool = False) -> Any:
    """What the client gets of a request whose body comes in these chunks."""
    messages: list[Message] = [
        {"type": "http.request", "body": chunk, "more_body": leaves or chunk is not chunks[-1]}
        for chunk in chunks
    ]
    messages.append({"type": "http.disconnect"})
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "headers": [(b"x-request-id", header)]}
    asyncio.run(IDS.RequestIds(echo)(scope, receive, send))
    return sent


def body_with(length: int) -> bytes:
    return json.dumps({"request_id": "x" * length, "prompt": "hello"}).encode()


def test_what_is_short_passes_unchanged() -> None:
    for body in (b"", b"no json" * 1000, body_with(IDS.MAX_ID), b"[" + body_with(2000) + b"]"):
        half = len(body) // 2
        passed = {"type": "http.request", "status": 200, "body": body}
        assert ask(body[:half], body[half:], header=b"x" * IDS.MAX_ID) == [passed]
    assert ask(b"", header=b"x" * 5000, method="GET")[0]["status"] == 200


def test_a_client_that_leaves_half_way_is_reported_as_gone() -> None:
    assert ask(b"half of", leaves=True)[0]["type"] == "http.disconnect"


@pytest.mark.parametrize("nul", [b"x", b"\xff"])
def test_a_long_id_is_refused_with_a_400_that_names_it(nul: bytes) -> None:
    long = IDS.MAX_ID + 1
    for where, got in (
        ("X-Request-Id", ask(b"{}", header=nul * long)),
        ("X-Request-Id", ask(b"{}", header="é".encode() * (long // 2 + 1))),
        ("request_id", ask(body_with(long)[:500], body_with(long)[500:])),
    ):
        start, body = got
        assert start["status"] == 400
        assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()
        assert where in json.loads(body["body"])["error"]["message"]


@pytest.mark.parametrize("bad", ["\n", "\r", "\0", "\x1b", "\x7f", "\x85", "\u2028", "\ud800"])
def test_a_control_character_in_the_bodys_id_is_refused_with_a_400_that_names_it(bad: str) -> None:
    body = json.dumps({"request_id": f"a{bad}b", "prompt": "hello"}).encode()
    start, answer = ask(body)
    assert start["status"] == 400
    assert json.loads(answer["body"])["error"]["message"] == (
        f"request_id holds the control character {bad!a}; choose an id without any"
    )


@pytest.mark.parametrize(
    "written",
    [
        b'{"request_id" : "a\\nb"}',
        rb'{"\u0072equest_id": "a\nb"}',
        rb'{"request\u005Fid": "a\nb"}',
        rb'{"\u0072\u0065\u0071\u0075\u0065\u0073\u0074\u005f\u0069\u0064": "a\nb"}',
        r'{"request_id": "a\nb"}'.encode("utf-16"),
        r'{"request_id": "a\nb"}'.encode("utf-16-be"),
        r'{"request_id": "a\nb"}'.encode("utf-32"),
    ],
)
def test_the_field_is_found_however_it_is_written(written: bytes) -> None:
    assert ask(written)[0]["status"] == 400


@pytest.mark.parametrize("bad", [b"\n", b"\t", b"\0", b"\x7f", b"\xc2\x85"])
def test_a_control_character_in_the_header_is_refused_with_a_400_that_names_it(bad: bytes) -> None:
    start, answer = ask(b"{}", header=b"a" + bad + b"b")
    assert start["status"] == 400
    message = json.loads(answer["body"])["error"]["message"]
    assert message.startswith("the header X-Request-Id holds the control character ")


def test_an_id_of_any_script_passes_and_so_do_control_characters_elsewhere() -> None:
    for chosen in ("Größe 7", "質問-1", "👩\u200d🔬", ""):
        body = json.dumps({"request_id": chosen, "prompt": "two\nlines"}).encode()
        (passed,) = ask(body, header=chosen.encode())
        assert (passed["status"], passed["body"]) == (200, body)
    for no_id in (
        b'{"request_id": 7}',
        b'["request_id", "a\\nb"]',
        b'{"request_id": "a',
        b'{"request_id":' + b"[" * 10**6,
    ):
        assert ask(no_id)[0]["status"] == 200, "the API server's to judge"


def test_the_limit_leaves_room_below_the_controllers() -> None:
    from vdisagg.control.dispatch import MAX_ID

    assert IDS.MAX_ID + 100 < MAX_ID
