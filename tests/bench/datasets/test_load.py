import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.tokenizer import HIGHEST, LOWEST, FakeTokenizer
from vdisagg.bench.asks import Ask, Message
from vdisagg.bench.bodies import Endpoint
from vdisagg.bench.datasets.lengths import exactly
from vdisagg.bench.datasets.load import DataSet, Load, asks
from vdisagg.bench.datasets.random import Ids
from vdisagg.bench.tokens import tokenizer
from vdisagg.errors import Failure, UsageError

IDS = Ids(LOWEST, HIGHEST)


def loaded(
    data: DataSet,
    count: int | None,
    *,
    endpoint: Endpoint = "completions",
    server: FakeTokenizer | None = None,
    seed: int = 1,
    duration_s: float | None = None,
) -> Load:
    async def main() -> Load:
        if server is None:
            return await asks(data, count, seed=seed, endpoint=endpoint, duration_s=duration_s)
        async with server.serving(), tokenizer(server.url, "m") as opened:
            return await asks(
                data,
                count,
                seed=seed,
                endpoint=endpoint,
                tokenizer=opened,
                duration_s=duration_s,
            )

    return asyncio.run(main())


def file(tmp_path: Path, *entries: dict[str, Any]) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def talk(prompt: str, answer: str | None = None) -> dict[str, Any]:
    turns = [{"from": "human", "value": prompt}]
    if answer is not None:
        turns.append({"from": "gpt", "value": answer})
    return {"conversations": turns}


TRACE = [
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
    {"timestamp": 500, "input_length": 700, "output_length": 6, "hash_ids": [1, 3]},
]


def test_without_a_file_prompts_are_drawn_1000_in_and_200_out() -> None:
    load = loaded(DataSet(), 3)
    assert [(len(ask.prompt), ask.output_len, ask.due_s) for ask in load.asks] == [
        (1000, 200, None)
    ] * 3
    assert (load.form, load.notes) == ("random", [])
    with pytest.raises(UsageError, match="the number of requests must be said"):
        loaded(DataSet(), None)
    with pytest.raises(UsageError, match="--prefix-len 1001 is above --input-len 1000"):
        loaded(DataSet(prefix_len=1001), 3)


def test_chats_of_drawn_prompts_are_as_long_as_asked_with_their_template() -> None:
    server = FakeTokenizer()
    data = DataSet(input_len=exactly(40), output_len=exactly(8), ids=IDS)
    load = loaded(data, 20, endpoint="chat", server=server)
    for ask in load.asks:
        assert ask.output_len == 8
        assert not isinstance(ask.prompt, str)
        (message,) = ask.prompt
        assert isinstance(message, Message)
        assert server.count([{"role": message.role, "content": message.content}]) == 40


def test_chats_of_exact_length_need_a_tokenizer() -> None:
    with pytest.raises(UsageError, match="need a server that counts tokens; next: use completions"):
        loaded(DataSet(), 1, endpoint="chat")


def test_a_traces_requests_keep_their_times_and_prefixes(tmp_path: Path) -> None:
    load = loaded(DataSet(path=file(tmp_path, *TRACE)), None)
    one, other = load.asks
    assert load.form == "trace"
    assert [one.due_s, other.due_s] == [0.0, 0.5]
    assert [one.output_len, other.output_len] == [5, 6]
    assert one.prompt[:512] == other.prompt[:512]


def test_a_traces_chats_keep_lengths_and_times(tmp_path: Path) -> None:
    server = FakeTokenizer()
    data = DataSet(path=file(tmp_path, *TRACE), ids=IDS, output_len=exactly(3))
    load = loaded(data, None, endpoint="chat", server=server)
    for ask, length, due_s in zip(load.asks, (600, 700), (0.0, 0.5), strict=True):
        assert not isinstance(ask.prompt, str)
        (message,) = ask.prompt
        assert isinstance(message, Message)
        assert server.count([{"role": message.role, "content": message.content}]) == length
        assert (ask.output_len, ask.due_s) == (3, due_s)


def test_a_duration_cuts_a_trace_and_says_nothing_of_a_count(tmp_path: Path) -> None:
    load = loaded(DataSet(path=file(tmp_path, *TRACE)), 10, duration_s=0.4)
    assert (len(load.asks), load.notes) == (1, [])


def test_conversations_are_counted_or_as_long_as_the_user_says(tmp_path: Path) -> None:
    path = file(tmp_path, talk("hi", "abc"))
    assert loaded(DataSet(path=path), 1, server=FakeTokenizer()).asks == [Ask("hi", 3)]
    assert loaded(DataSet(path=path, output_len=exactly(9)), 1).asks == [Ask("hi", 9)]
    with pytest.raises(UsageError, match="--output-len is needed"):
        loaded(DataSet(path=path), 1)


def test_another_seed_takes_other_conversations(tmp_path: Path) -> None:
    data = DataSet(path=file(tmp_path, *(talk(f"{n}") for n in range(50))), output_len=exactly(1))
    prompts = [[ask.prompt for ask in loaded(data, 10, seed=seed).asks] for seed in (1, 1, 2)]
    assert prompts[0] == prompts[1] != prompts[2]
    assert len({str(prompt) for prompt in prompts[0]}) == 10


def test_too_few_entries_are_said_and_begin_again_only_with_reuse(tmp_path: Path) -> None:
    path = file(tmp_path, talk("a"), talk("b"), talk(""))
    load = loaded(DataSet(path=path, output_len=exactly(1)), 5)
    assert len(load.asks) == 2
    assert load.notes == [
        "left out: 1 entries without a text from a human",
        f"{path} has 2 of the 5 requests asked for; --reuse begins again",
    ]
    again = loaded(DataSet(path=path, output_len=exactly(1), reuse=True), 5)
    assert len(again.asks) == 5
    assert again.asks[2:4] == again.asks[:2]
    assert again.notes == ["left out: 1 entries without a text from a human"]


def test_answers_that_can_not_be_used_are_said(tmp_path: Path) -> None:
    path = file(tmp_path, talk("a", "b"), talk("c"))
    load = loaded(DataSet(path=path), None, server=FakeTokenizer())
    assert load.asks == [Ask("a", 1)]
    assert load.notes == ["left out: 1 entries without an answer, or longer than the model takes"]


def test_a_file_of_which_nothing_can_be_sent_is_a_failure(tmp_path: Path) -> None:
    path = file(tmp_path, talk(""))
    with pytest.raises(Failure, match="holds no request that can be sent; left out: 1 entries"):
        loaded(DataSet(path=path, output_len=exactly(1)), 5)
