import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fakes.tokenizer import FakeTokenizer
from vdisagg.bench.asks import Ask, Message
from vdisagg.bench.datasets.files import Entry
from vdisagg.bench.datasets.lengths import exactly
from vdisagg.bench.datasets.sharegpt import Dialogue, counted, dialogues, given
from vdisagg.bench.tokens import tokenizer
from vdisagg.errors import UsageError

PATH = Path("talks.json")


def found(*entries: dict[str, Any]) -> tuple[list[Dialogue], int]:
    return dialogues(PATH, [Entry(1, json.dumps(entry).encode()) for entry in entries])


def said(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"id": "a", "conversations": [{"from": who, "value": text} for who, text in turns]}


def test_the_first_human_turn_is_the_prompt_and_what_follows_the_answer() -> None:
    talk = said(("human", "hi"), ("gpt", "hello"), ("human", "bye"), ("gpt", "farewell"))
    assert found(talk) == ([Dialogue("hi", "hello")], 0)


def test_openais_form_is_read_too() -> None:
    talk = {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"},
        ]
    }
    assert found(talk) == ([Dialogue("hi", "hello")], 0)


def test_what_stands_before_the_human_is_passed_over() -> None:
    assert found(said(("gpt", "..."), ("human", "hi"), ("gpt", "hello")))[0] == [
        Dialogue("hi", "hello")
    ]


@pytest.mark.parametrize(
    "talk",
    [
        said(),
        said(("gpt", "hello")),
        said(("human", "  "), ("gpt", "hello")),
        said(("human", None), ("gpt", "hello")),
        said(("human", [{"type": "image_url"}]), ("gpt", "hello")),
        {"id": "a"},
        {"conversations": None},
        {"conversations": [{"from": ["human"], "value": "hi"}]},
    ],
)
def test_entries_without_a_humans_text_are_left_out_and_counted(talk: dict[str, Any]) -> None:
    assert found(talk, said(("human", "hi"))) == ([Dialogue("hi", "")], 1)


def test_what_follows_but_is_not_the_models_is_no_answer() -> None:
    assert found(said(("human", "hi"), ("human", "there"), ("gpt", "hello")))[0] == [
        Dialogue("hi", "")
    ]


def test_an_entry_that_is_no_conversation_is_named() -> None:
    with pytest.raises(UsageError, match=r"talks\.json:7: not a conversation: Expected `array"):
        dialogues(PATH, [Entry(7, b'{"messages": 3}')])


def test_a_given_length_needs_no_answers() -> None:
    made = given([Dialogue("hi", "")], chat=False, output_len=exactly(9), rng=Random(1))
    assert made == [Ask("hi", 9)]


def counts(
    talks: list[Dialogue], count: int | None, *, chat: bool, server: FakeTokenizer
) -> tuple[list[Ask], int]:
    async def main() -> tuple[list[Ask], int]:
        async with server.serving(), tokenizer(server.url, "m") as opened:
            return await counted(talks, count, chat=chat, tokenizer=opened)

    return asyncio.run(main())


def test_answers_are_as_long_as_the_servers_tokenizer_says() -> None:
    """Two words of its vocabulary are 2 tokens, "abc" is 3, whatever comes before a prompt."""
    talks = [Dialogue("hi", " waaa waab"), Dialogue("ho", "abc")]
    server = FakeTokenizer(bos=1)
    assert counts(talks, None, chat=False, server=server) == ([Ask("hi", 2), Ask("ho", 3)], 0)
    assert counts(talks, None, chat=True, server=server) == (
        [Ask([Message("user", "hi")], 2), Ask([Message("user", "ho")], 3)],
        0,
    )


def test_what_has_no_answer_or_is_too_long_is_left_out_and_replaced() -> None:
    """The model takes 12 tokens: 7 of the template, 2 and 3 are just enough, 2 and 4 too many."""
    server = FakeTokenizer()
    server.max_model_len = 12
    talks = [Dialogue("hi", ""), Dialogue("hi", "abcd"), Dialogue("hi", "abc"), Dialogue("a", "b")]
    assert counts(talks, 1, chat=True, server=server) == ([Ask([Message("user", "hi")], 3)], 2)


def test_only_as_many_are_counted_as_are_needed() -> None:
    server = FakeTokenizer()
    made, left = counts([Dialogue("hi", "ho")] * 50, 3, chat=False, server=server)
    assert (len(made), left) == (3, 0)
    assert len(server.calls) == 6
