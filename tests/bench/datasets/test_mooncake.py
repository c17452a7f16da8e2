import json
from pathlib import Path
from typing import Any

import pytest

from vdisagg.bench.asks import Ask
from vdisagg.bench.datasets.files import Entry
from vdisagg.bench.datasets.mooncake import Prompts, Request, asks, requests
from vdisagg.bench.datasets.random import Ids
from vdisagg.errors import UsageError

PATH = Path("trace.jsonl")


def line(
    at: float, tokens: int, answer: int = 5, hash_ids: list[int] | None = None
) -> dict[str, Any]:
    return {
        "timestamp": at,
        "input_length": tokens,
        "output_length": answer,
        "hash_ids": hash_ids or [],
    }


def entries(*lines: dict[str, Any]) -> list[Entry]:
    return [Entry(number, json.dumps(each).encode()) for number, each in enumerate(lines, 1)]


def prompts(seed: int = 1) -> Prompts:
    return Prompts(seed=seed, ids=Ids())


def made(*lines: dict[str, Any], seed: int = 1, **options: Any) -> list[Ask]:
    found, _ = requests(PATH, entries(*lines))
    options.setdefault("count", None)
    return asks(found, prompts(seed), **options)


def test_times_count_from_the_first_request_in_seconds() -> None:
    found, unusable = requests(
        PATH, entries(line(3000, 28, 445), line(5999, 31, 389), line(9000.5, 17, 614))
    )
    assert found == [
        Request(1, 0.0, 28, 445, []),
        Request(2, 2.999, 31, 389, []),
        Request(3, 6.0005, 17, 614, []),
    ]
    assert unusable == 0


def test_requests_come_in_the_order_of_their_times() -> None:
    found, _ = requests(PATH, entries(line(200, 1), line(100, 2), line(200, 3)))
    assert [(request.line, request.due_s) for request in found] == [(2, 0), (1, 0.1), (3, 0.1)]


def test_requests_without_a_prompt_or_an_answer_are_left_out_and_counted() -> None:
    found, unusable = requests(PATH, entries(line(0, 0), line(1000, 5), line(3000, 5, 0)))
    assert [(request.line, request.due_s) for request in found] == [(2, 0.0)]
    assert unusable == 2


def test_prompts_have_the_traces_lengths_and_share_what_its_hash_ids_share() -> None:
    """Two lines of a published trace, cut to three blocks: 1024 tokens in common, and no more."""
    one, other = made(line(0, 1300, 500, [46, 47, 48]), line(40, 1536, 490, [46, 47, 49]), seed=1)
    assert [len(one.prompt), len(other.prompt)] == [1300, 1536]
    assert [one.output_len, other.output_len] == [500, 490]
    assert [one.due_s, other.due_s] == [0.0, 0.04]
    assert one.prompt[:1024] == other.prompt[:1024]
    assert one.prompt[1024:1030] != other.prompt[1024:1030]


def test_a_block_is_the_same_tokens_wherever_and_however_short() -> None:
    whole, part = made(line(0, 1024, 1, [7, 8]), line(0, 600, 1, [9, 8]))
    assert part.prompt[512:] == whole.prompt[512:600]


def test_the_seed_fixes_the_tokens_and_another_one_has_others() -> None:
    trace = line(0, 700, 1, [3, 4])
    assert made(trace, seed=1) == made(trace, seed=1)
    assert made(trace, seed=1)[0].prompt[:5] != made(trace, seed=2)[0].prompt[:5]


def test_what_no_hash_id_stands_for_is_shared_with_nobody() -> None:
    one, other = made(line(0, 700, 1, [3]), line(0, 700, 1, [3]))
    assert one.prompt[:512] == other.prompt[:512]
    assert one.prompt[512:515] != other.prompt[512:515]
    assert len(other.prompt) == 700
    (alone,) = made(line(0, 700))
    assert len(alone.prompt) == 700


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b"{", "trace.jsonl:3: not a trace's request: Input data was truncated; expected is"),
        (
            b'{"timestamp": 0}',
            "trace.jsonl:3: not a trace's request: Object missing required field",
        ),
        (
            json.dumps(line(0, 1300, 5, [1])).encode(),
            "trace.jsonl:3: 1 hash_ids for 1300 tokens; expected is one per 512 tokens, so 3",
        ),
        (
            json.dumps(line(0, 1024, 5, [1, 2, 3])).encode(),
            "trace.jsonl:3: 3 hash_ids for 1024 tokens; expected is one per 512 tokens, so 2",
        ),
    ],
)
def test_a_wrong_line_is_named_with_what_is_expected(broken: bytes, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        requests(PATH, [Entry(3, broken)])
    assert str(refused.value).startswith(message)


def test_what_is_left_at_a_prompts_end_may_have_no_hash_id() -> None:
    """1300 tokens are two blocks and 276 more."""
    assert len(made(line(0, 1300, 5, [1, 2]))[0].prompt) == 1300


def test_a_trace_may_have_blocks_of_another_size() -> None:
    found, _ = requests(PATH, entries(line(0, 40, 5, [1, 2, 3])), block_tokens=16)
    ask = Prompts(seed=1, ids=Ids(), block_tokens=16).ask(found[0], due_s=0)
    assert len(ask.prompt) == 40


def test_a_count_or_a_duration_ends_the_trace() -> None:
    trace = [line(1000 * second, 5) for second in range(5)]
    assert [ask.due_s for ask in made(*trace, count=3)] == [0, 1, 2]
    assert [ask.due_s for ask in made(*trace, duration_s=2)] == [0, 1]
    assert len(made(*trace, count=9)) == 5


def test_with_reuse_a_trace_begins_again_after_a_mean_gap() -> None:
    """0, 1 and 4 s: the mean gap is 2 s, so the second round begins at 6 s."""
    trace = [line(0, 5), line(1000, 6), line(4000, 7)]
    again = made(*trace, count=7, reuse=True)
    assert [ask.due_s for ask in again] == [0, 1, 4, 6, 7, 10, 12]
    assert again[3].prompt == again[0].prompt
    assert [ask.due_s for ask in made(*trace, duration_s=6.5, reuse=True)] == [0, 1, 4, 6]


def test_reuse_of_a_single_moment_ends_by_the_count_alone() -> None:
    assert [ask.due_s for ask in made(line(9, 5), count=3, reuse=True)] == [0, 0, 0]
    assert len(made(line(9, 5), duration_s=3, reuse=True)) == 1
    assert made(count=3, reuse=True) == []


def test_a_trace_that_would_begin_again_for_ever_is_refused() -> None:
    # Two requests, the second after 1 s: two a 2 s, so 1e9 s are 1e9 requests.
    with pytest.raises(
        UsageError, match=r"--duration 1e\+09 with --reuse is 1,000,000,000 requests"
    ):
        made(line(0, 5), line(1000, 5), duration_s=1e9, reuse=True)
