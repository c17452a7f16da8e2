import json

import pytest

from vdisagg.bench.answer import DONE, Answer, error_text
from vdisagg.bench.samples import Sample


def completion(text: str, tokens: int | None = None) -> dict[str, object]:
    chunk: dict[str, object] = {"choices": [{"index": 0, "text": text}]}
    if tokens is not None:
        chunk["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}
    return chunk


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


def usage(tokens: int, **more: object) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens, **more}}


def sample(*events: tuple[float, object], done: bool = True, expected: int = 0) -> Sample:
    answer = Answer()
    for at, event in events:
        answer.take(json.dumps(event).encode(), at)
    if done:
        answer.take(DONE, 99.0)
    return answer.sample(number=0, due=0.0, sent=0.0, ended=99.0, expected_tokens=expected)


def test_f02_ttft_is_the_first_reasoning_token_and_e2e_ends_at_the_last_token() -> None:
    found = sample(
        (0.010, delta(role="assistant", content="")),
        (0.200, delta(reasoning="Hm")),
        (0.500, delta(content="Yes")),
        (0.600, delta(content="!")),
        (0.900, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        (1.000, usage(3)),
    )
    assert found.failure is None
    assert found.ttft_s == pytest.approx(0.2)
    assert found.e2e_s == pytest.approx(0.6)
    assert found.tpot_s == pytest.approx(0.2)
    assert found.gaps_s == pytest.approx([0.3, 0.1])


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "content"])
def test_f02_every_kind_of_text_is_a_token(field: str) -> None:
    assert sample((0.2, delta(**{field: "x"})), (0.3, usage(1))).ttft_s == 0.2


def test_f02_a_tool_call_is_tokens_too() -> None:
    assert sample((0.2, delta(tool_calls=[{"index": 0}])), (0.3, usage(1))).ttft_s == 0.2


def test_f02_a_running_count_of_zero_is_no_token_whatever_the_chunk_says() -> None:
    opening = {**delta(role="assistant", content="x"), "usage": {"completion_tokens": 0}}
    token = {**delta(content=""), "usage": {"completion_tokens": 1}}
    assert sample((0.01, opening), (0.2, token)).ttft_s == 0.2


def test_f02_chunks_without_choices_are_harmless() -> None:
    empty = [(0.1, {"choices": []}), (0.2, {}), (0.3, {"choices": None})]
    found = sample(*empty, (0.4, completion("a", 1)), *empty)
    assert (found.ttft_s, found.e2e_s, found.failure) == (0.4, 0.4, None)


def test_f02_gaps_count_tokens_where_chunks_hold_several() -> None:
    found = sample(
        (1.0, completion("ab", 2)), (1.3, completion("cde", 5)), (1.4, completion("f", 6))
    )
    assert found.gaps_s == pytest.approx([0.1] * 4)
    assert found.tpot_s == pytest.approx(0.1)
    assert found.output_tokens == 6
    assert found.first_tokens == 2


def test_an_empty_text_of_a_completion_is_half_a_character_and_so_a_token() -> None:
    found = sample((0.1, completion("")), (0.2, completion("ü")), (0.3, usage(2)))
    assert found.ttft_s == 0.1
    assert found.gaps_s == pytest.approx([0.1])


def test_gaps_are_not_guessed_where_chunks_sizes_are_unknown() -> None:
    found = sample((0.1, completion("a")), (0.2, completion("bc")), (0.3, usage(3)))
    assert found.gaps_s is None
    assert found.output_tokens == 3
    assert found.tpot_s == pytest.approx(0.05)


def test_one_token_has_no_time_per_token() -> None:
    found = sample((0.1, completion("a", 1)))
    assert found.tpot_s is None
    assert found.gaps_s == []


def test_the_usage_gives_the_counts() -> None:
    found = sample(
        (0.1, completion("a", 1)), (0.2, usage(1, prompt_tokens_details={"cached_tokens": 4}))
    )
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (9, 4, 1)


def test_a_stream_without_its_end_is_a_failure() -> None:
    assert sample((0.1, completion("a", 1)), done=False).failure == "cut short"


def test_an_error_in_the_stream_is_a_failure_with_its_message() -> None:
    found = sample((0.1, completion("a", 1)), (0.2, {"error": {"message": "engine died"}}))
    assert (found.failure, found.detail) == ("error in the stream", "engine died")


def test_a_wrong_number_of_tokens_is_a_failure() -> None:
    found = sample((0.1, completion("a", 1)), expected=2)
    assert (found.failure, found.detail) == ("wrong length", "1 tokens where 2 were asked for")
    assert sample((0.1, completion("a", 1)), expected=1).failure is None


def test_what_is_no_json_is_a_failure_not_a_crash() -> None:
    answer = Answer()
    answer.take(b"<html>", 0.1)
    answer.take(DONE, 0.2)
    found = answer.sample(number=0, due=0.0, sent=0.0, ended=0.3, expected_tokens=0)
    assert found.failure == "not understood"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"message": "bare"}', "bare"),
        (b"Bad Gateway", "Bad Gateway"),
        (b'{"error": "text"}', '{"error": "text"}'),
    ],
)
def test_errors_say_what_the_front_end_said(body: bytes, text: str) -> None:
    assert error_text(body) == text
