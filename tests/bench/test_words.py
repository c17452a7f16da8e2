import asyncio
from random import Random

import pytest

from fakes.tokenizer import HIGHEST, LOWEST, SPELLINGS, FakeTokenizer
from vdisagg.bench.datasets.random import Ids
from vdisagg.bench.tokens import tokenizer
from vdisagg.bench.words import Words, learn
from vdisagg.errors import Failure

IDS = Ids(LOWEST, HIGHEST)


def chats(server: FakeTokenizer, prompts: list[list[int]], ids: Ids = IDS) -> list[str]:
    async def main() -> list[str]:
        async with server.serving(), tokenizer(server.url, "m") as opened:
            words = await learn(opened, ids)
            found = [await words.chat(prompt, opened) for prompt in prompts]
            assert all(len(messages) == 1 for messages in found)
            assert {messages[0].role for messages in found} == {"user"}
            return [messages[0].content for messages in found]

    return asyncio.run(main())


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("length", [30, 31, 500])
def test_a_chat_is_exactly_as_long_as_asked_by_the_servers_count(strips: bool, length: int) -> None:
    server = FakeTokenizer(strips=strips)
    for text in chats(server, [IDS.draw(length, Random(seed)) for seed in range(5)]):
        assert server.count([{"role": "user", "content": text}]) == length


def test_chats_are_made_of_words_that_are_one_token() -> None:
    """30 tokens, 7 of them the template's."""
    (text,) = chats(FakeTokenizer(), [IDS.draw(30, Random(1))])
    words = text.split(" ")[1:]
    assert len(words) == 23
    assert all(f" {word}" in SPELLINGS for word in words)


def test_prompts_that_share_ids_share_as_many_words() -> None:
    prefix = IDS.draw(40, Random(1))
    one, other = chats(
        FakeTokenizer(), [prefix + IDS.draw(20, Random(2)), prefix + IDS.draw(20, Random(3))]
    )
    assert one.split()[:40] == other.split()[:40]
    assert one.split()[40] != other.split()[40]


def test_the_same_tokenizer_gives_the_same_words() -> None:
    prompt = IDS.draw(30, Random(1))
    assert chats(FakeTokenizer(), [prompt]) == chats(FakeTokenizer(), [prompt])


def test_one_call_checks_a_prompt() -> None:
    """Three calls learn the words, one the template, and each prompt is right at once."""
    server = FakeTokenizer()
    chats(server, [IDS.draw(50, Random(seed)) for seed in range(6)])
    assert len(server.calls) == 4 + 6


def test_a_prompt_shorter_than_the_template_is_refused() -> None:
    with pytest.raises(Failure, match="a chat of 7 tokens has no room for a message"):
        chats(FakeTokenizer(), [IDS.draw(7, Random(1))])


def test_where_no_text_fits_the_tries_end() -> None:
    with pytest.raises(Failure, match="no chat of exactly 31 tokens found in 10 tries"):
        chats(FakeTokenizer(even=True), [IDS.draw(31, Random(1))])


def test_a_vocabulary_without_words_is_refused() -> None:
    with pytest.raises(Failure, match=r"only 2 words .* between token ids 1000 and 1002"):
        chats(FakeTokenizer(), [], ids=Ids(1000, 1002))


def test_more_words_than_ids_begin_again() -> None:
    assert Words(["ab", "cd", "ef"], 0).text([4, 5], 3) == " cd ef cd"
