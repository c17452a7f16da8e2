import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from aiohttp import web

from fakes.tokenizer import FakeTokenizer
from vdisagg.bench.asks import Message
from vdisagg.bench.tokens import AT_ONCE, Tokenizer, Tokens, each, tokenizer
from vdisagg.errors import Failure

T = TypeVar("T")


def asked(server: FakeTokenizer, what: Callable[[Tokenizer], Awaitable[T]], model: str = "m") -> T:
    async def main() -> T:
        async with server.serving(), tokenizer(server.url, model) as opened:
            return await what(opened)

    return asyncio.run(main())


def test_a_completions_prompt_is_counted_with_what_the_model_puts_before_it() -> None:
    """One word of the vocabulary is 1 token; "wx" behind a blank is 3: the blank, w and x."""

    async def both(t: Tokenizer) -> tuple[int, int]:
        with_special = await t.text(" waaa wx")
        without = await t.text(" waaa wx", special=False)
        return with_special.count, without.count

    assert asked(FakeTokenizer(bos=1), both) == (5, 4)


def test_a_chat_is_counted_within_its_template() -> None:
    """The template's 7, 4 for the second message, 1 and 2 words."""
    server = FakeTokenizer()
    messages = [Message("system", " waaa"), Message("user", " waaa waab")]
    found = asked(server, lambda t: t.chat(messages))
    assert (found.count, found.max_model_len) == (14, 4096)
    assert server.calls == [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": " waaa"},
                {"role": "user", "content": " waaa waab"},
            ],
            "add_generation_prompt": True,
        }
    ]


def test_what_vllm_answers_is_understood() -> None:
    """Recorded from vLLM 0.32.0 with SmolLM2-135M-Instruct."""
    text = (
        b'{"count":4,"max_model_len":8192,"tokens":[504,3426,314,3599],'
        b'"token_strs":["The","\xc4\xa0sea","\xc4\xa0is","\xc4\xa0wide"]}'
    )
    chat = b'{"count":3,"max_model_len":8192,"tokens":[1,9690,198],"token_strs":null}'

    class Recorded(FakeTokenizer):
        async def tokenize(self, request: web.Request) -> web.Response:
            body = chat if "messages" in await request.json() else text
            return web.Response(body=body, content_type="application/json")

    async def both(t: Tokenizer) -> list[Tokens]:
        return [await t.text("The sea is wide", strings=True), await t.chat([])]

    assert asked(Recorded(), both) == [
        Tokens(4, 8192, ["The", "Ġsea", "Ġis", "Ġwide"]),
        Tokens(3, 8192),
    ]


def test_ids_become_text() -> None:
    assert asked(FakeTokenizer(), lambda t: t.detokenize([1000, 1002])) == " waaafaac"


def test_a_server_without_the_endpoint_is_said_to_lack_it_and_what_to_do() -> None:
    with pytest.raises(Failure, match=r"/tokenize: HTTP 404: .*as vLLM does.*next: .*completions"):
        asked(FakeTokenizer(has_tokenize=False), lambda t: t.text("x"))


def test_an_unknown_model_is_named_in_the_servers_words() -> None:
    with pytest.raises(Failure, match=r"HTTP 404: The model `other` does not exist"):
        asked(FakeTokenizer(), lambda t: t.text("x"), model="other")


def test_a_server_that_is_not_there_is_a_failure_of_ours() -> None:
    async def main() -> None:
        async with tokenizer("http://127.0.0.1:1", "m") as opened:
            await opened.text("x")

    with pytest.raises(Failure, match=r"/tokenize: no answer: .*127\.0\.0\.1:1"):
        asyncio.run(main())


def test_a_servers_path_and_key_go_along() -> None:
    class Guarded(FakeTokenizer):
        async def tokenize(self, request: web.Request) -> web.Response:
            self.calls.append({"path": request.path, "key": request.headers["Authorization"]})
            return web.json_response({"count": 1, "max_model_len": 8})

        def routes(self, app: web.Application) -> None:
            app.router.add_post("/behind/tokenize", self.tokenize)

    server = Guarded()

    async def main() -> int:
        async with (
            server.serving(),
            tokenizer(f"{server.url}/behind", "m", api_key="secret") as opened,
        ):
            return (await opened.text("x")).count

    assert asyncio.run(main()) == 1
    assert server.calls == [{"path": "/behind/tokenize", "key": "Bearer secret"}]


def test_an_answer_of_another_kind_is_not_understood() -> None:
    class Other(FakeTokenizer):
        async def tokenize(self, request: web.Request) -> web.Response:
            return web.json_response({"tokens": "many"})

    with pytest.raises(Failure, match="not what vLLM's /tokenize answers"):
        asked(Other(), lambda t: t.text("x"))


def test_items_are_done_a_few_at_a_time_and_keep_their_order() -> None:
    under_way = most = 0

    async def double(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return 2 * number

    assert asyncio.run(each(double, range(40))) == [2 * number for number in range(40)]
    assert most == AT_ONCE


def test_after_a_failure_nothing_further_is_begun() -> None:
    begun: list[int] = []

    async def fail(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise Failure("three")

    with pytest.raises(Failure, match="three"):
        asyncio.run(each(fail, range(40)))
    assert begun == list(range(AT_ONCE))
