import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fakes.http_front_end import FakeFrontEnd, completion
from vdisagg.bench.client import Target
from vdisagg.bench.datasets.lengths import Lengths
from vdisagg.bench.insight import Insight
from vdisagg.bench.options import Options, parse_max_failures
from vdisagg.bench.outcome import Outcome, load, save
from vdisagg.bench.result import LoadPoint, Result
from vdisagg.bench.run import run
from vdisagg.bench.samples import Phases
from vdisagg.bench.targets import cluster_target, given_target
from vdisagg.errors import Failure, UsageError

SMALL: dict[str, Any] = {"input_len": 5, "output_len": 3}


def ran(
    options: Options, front_end: FakeFrontEnd | None = None, insight: Insight | None = None
) -> tuple[Result, FakeFrontEnd]:
    front_end = front_end or FakeFrontEnd()

    async def main() -> Result:
        async with front_end.serving():
            where = Target(url=front_end.url, model="m")
            return await run(options, where, clock=lambda: 1000.0, insight=insight)

    return asyncio.run(main()), front_end


def test_f04_warm_up_is_sent_and_not_measured() -> None:
    result, front_end = ran(Options(requests=4, warmup=3, **SMALL))
    assert len(front_end.bodies) == 7
    assert len(result.samples) == result.report.finished == 4
    assert result.report.output_tokens == 12
    assert result.report.settings.started == 1000.0


def test_requests_are_greedy_and_exact_in_length_both_ways() -> None:
    _, front_end = ran(Options(requests=1, warmup=0, **SMALL))
    body = front_end.bodies[0]
    assert len(body["prompt"]) == 5
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (3, True, 0)


def test_f04_prompts_are_fresh_per_run_unless_fixed() -> None:
    def prompts(**options: Any) -> list[list[int]]:
        _, front_end = ran(Options(requests=3, warmup=1, max_in_flight=1, **SMALL, **options))
        return [body["prompt"] for body in front_end.bodies]

    assert prompts() != prompts()
    assert prompts(prompt_seed=4) == prompts(prompt_seed=4)
    once = prompts()
    assert len({tuple(prompt) for prompt in once}) == len(once)


def test_the_prompt_seed_that_was_drawn_is_reported() -> None:
    result, first = ran(Options(requests=2, max_in_flight=1, **SMALL))
    seed = result.report.settings.prompt_seed
    _, again = ran(Options(requests=2, max_in_flight=1, prompt_seed=seed, **SMALL))
    assert [body["prompt"] for body in again.bodies] == [body["prompt"] for body in first.bodies]


def test_a_failing_warm_up_stops_the_run_and_says_why() -> None:
    front_end = FakeFrontEnd()

    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    front_end.answer = refuse
    with pytest.raises(Failure, match=r"HTTP 404: no such model; next: "):
        ran(Options(requests=2, **SMALL), front_end)
    assert len(front_end.bodies) == 1


async def unknown_fields(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """As a server that knows only OpenAI's."""
    unknown = [name for name in ("cache_salt", "ignore_eos") if name in body]
    if unknown:
        said = f"Unrecognized request arguments supplied: {', '.join(unknown)}"
        return web.json_response({"error": {"message": said}}, status=400)
    return await completion(request, body)


def test_a_server_that_knows_only_openais_fields_gets_the_hint_and_then_the_load() -> None:
    front_end = FakeFrontEnd()
    front_end.answer = unknown_fields
    with pytest.raises(Failure, match=r"HTTP 400: Unrecognized .*ignore_eos; next: say --strict, "):
        ran(Options(requests=2, **SMALL), front_end)
    cold, _ = ran(Options(requests=2, warmup=0, **SMALL), front_end)
    assert cold.report.failed == 2
    assert cold.notes[0].startswith("the server refuses fields of vLLM's: say --strict, which ")
    strict, _ = ran(Options(requests=2, strict=True, **SMALL), front_end)
    assert (strict.report.finished, strict.notes) == (2, [])


def test_failures_are_counted_beside_the_good_ones() -> None:
    front_end = FakeFrontEnd()

    async def every_other(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(front_end.bodies) % 2:
            return web.Response(status=500, text="boom")
        return await completion(request, body)

    front_end.answer = every_other
    result, _ = ran(Options(requests=6, warmup=0, **SMALL), front_end)
    assert (result.report.finished, result.report.failed) == (3, 3)
    assert result.report.failures[0].kind == "HTTP 500"
    assert result.report.failures[0].example == "boom"


def test_the_saved_file_holds_report_and_samples(tmp_path: Path) -> None:
    result, _ = ran(Options(requests=2, **SMALL))
    path = tmp_path / "run.json"
    save(Outcome([result]), path)
    assert load(path).runs == [result]
    (run_of_file,) = json.loads(path.read_text())["runs"]
    assert run_of_file["report"]["settings"]["rate_per_s"] is None
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_place_that_takes_no_file_is_a_failure(tmp_path: Path) -> None:
    result, _ = ran(Options(requests=1, **SMALL))
    with pytest.raises(Failure, match="can't be written"):
        save(Outcome([result]), tmp_path / "missing" / "run.json")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"requests": 1, "duration_s": 1.0}, "--num-requests or --duration"),
        ({"duration_s": 1.0}, "--duration needs --rate"),
        ({"requests": 0}, "--num-requests is 0"),
        ({"requests": 1, "output_len": 0}, "--output-len is 0"),
        ({"requests": 1, "max_in_flight": 0}, "--max-concurrency is 0"),
        ({"requests": 1, "rate_per_s": 0.0}, "--rate is 0"),
        ({"requests": 1, "burstiness": -1.0}, "--burstiness is -1"),
        ({"requests": 1, "rate_per_s": math.nan}, "--rate is nan"),
        ({"requests": 1, "lowest_id": 9, "highest_id": 8}, "--highest-id 8 is below"),
        ({"workers": 0}, "--workers is 0"),
        ({"ramp_s": 5.0}, "--ramp needs --rate"),
        ({"rate_per_s": 1.0, "ramp_s": -1.0}, "--ramp is -1"),
        ({"max_failures": -1}, "--max-failures is -1"),
        ({"max_failures": 1.5}, "--max-failures is 1.5; a share"),
        ({"input_len": Lengths(5, 9), "prefix_len": 6}, "--prefix-len 6 is above --input-len 5:9"),
        ({"turns": 0}, "--turns is 0"),
        ({"duration_s": math.inf, "rate_per_s": 1.0}, "--duration is inf; a run has to end"),
        ({"requests": 1_000_001}, "--num-requests is 1,000,001 requests; one run has 1,000,000 at"),
        (
            {"duration_s": 1e9, "rate_per_s": 20.0},
            r"--rate 20 for --duration 1e\+09 is 20,000,000,000 requests; .*; next: ask for fewer",
        ),
    ],
)
def test_impossible_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options(**options).check()


def test_a_duration_gives_as_many_requests_as_the_rate_asks() -> None:
    assert Options(duration_s=10.0, rate_per_s=2.5).count() == 25
    assert Options(duration_s=0.1, rate_per_s=1.0).count() == 1
    assert Options(duration_s=10.0, rate_per_s=2.5, ramp_s=4.0).count() == 20
    assert Options(requests=7).count() == 7
    assert Options().count() == 100
    assert Options(dataset=Path("f")).count() is None


def test_a_url_is_taken_with_or_without_its_v1() -> None:
    assert given_target("http://h:1/v1/", "m").url == "http://h:1"
    assert given_target("http://h:1", "m").url == "http://h:1"


def test_a_url_needs_a_model_and_a_scheme() -> None:
    with pytest.raises(UsageError, match="--model"):
        given_target("http://h:1", None)
    with pytest.raises(UsageError, match="http://"):
        given_target("h:1", "m")


def test_the_key_comes_out_of_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    assert given_target("http://h:1", "m", "SOME_KEY").api_key == "secret"
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(UsageError, match="SOME_KEY"):
        given_target("http://h:1", "m", "SOME_KEY")


def test_a_cluster_that_is_not_up_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(Failure, match="cluster demo is not up"):
        cluster_target("demo")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url", ["http://", "http://h:0", "http://h:99999", "http://user:secret@h:1", "http://h:x"]
)
def test_a_url_that_leads_nowhere_is_named(url: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        given_target(url, "m")


def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_KEY", "sec\nret")
    with pytest.raises(UsageError, match="SOME_KEY") as refused:
        given_target("http://h:1", "m", "SOME_KEY")
    assert "sec" not in str(refused.value)


class FakeInsight(Insight):
    """A controller that deals requests out to two links in turn, and hears of their ends at once."""

    def __init__(self, front_end: FakeFrontEnd) -> None:
        self._front_end = front_end
        self._seen = len(front_end.request_ids)
        self.pairs = [("p0", "d0"), ("p0", "d1")]
        self.reachable = 2
        self.notes = ["a note of the controller's"]

    def begin(self) -> None:
        self._seen = len(self._front_end.request_ids)

    def links(self) -> list[tuple[str, str]]:
        return self.pairs

    def phases(self) -> dict[str, Phases]:
        ids = self._front_end.request_ids
        new = range(self._seen, len(ids))
        self._seen = len(ids)
        found = {}
        for number in new:
            prefill, decode = self.pairs[number % self.reachable]
            found[ids[number]] = Phases(prefill, decode, 0.1, 0.2, 0.3, 0.4)
        return found

    def load_points(self, at_s: float) -> list[LoadPoint]:
        return [LoadPoint(at_s, "p0", "prefill", 1, 1, 0, 0.5)]


def test_our_own_cluster_tells_phases_and_loads_of_the_measured_requests() -> None:
    front_end = FakeFrontEnd()
    result, _ = ran(Options(requests=6, **SMALL), front_end, FakeInsight(front_end))
    assert {sample.phases.decode for sample in result.samples if sample.phases} == {"d0", "d1"}
    assert all(sample.phases for sample in result.samples)
    assert sorted((link.decode, link.requests) for link in result.report.links) == [
        ("d0", 3),
        ("d1", 3),
    ]
    assert [point.instance for point in result.loads] == ["p0"] * len(result.loads)
    assert result.loads
    assert result.notes == ["a note of the controller's"]


def test_f04_warm_up_goes_on_until_every_pair_has_carried_a_request() -> None:
    front_end = FakeFrontEnd()
    ran(Options(requests=1, warmup=1, **SMALL), front_end, FakeInsight(front_end))
    # One, which took the first pair; two at once for the pair that was missing; the measured one.
    assert len(front_end.bodies) == 1 + 2 + 1


def test_f04_a_pair_that_carries_nothing_is_given_up_and_named() -> None:
    front_end = FakeFrontEnd()
    insight = FakeInsight(front_end)
    insight.reachable = 1
    result, _ = ran(Options(requests=1, warmup=1, **SMALL), front_end, insight)
    assert len(front_end.bodies) == 1 + 5 * 2 + 1
    assert "p0→d1 carried none of the 11 warm-up requests" in result.notes[0]


def test_without_warm_up_nothing_is_sent_to_any_pair() -> None:
    front_end = FakeFrontEnd()
    ran(Options(requests=1, warmup=0, **SMALL), front_end, FakeInsight(front_end))
    assert len(front_end.bodies) == 1


def test_several_processes_measure_as_one_does() -> None:
    result, front_end = ran(Options(requests=10, rate_per_s=100.0, workers=2, **SMALL))
    assert (result.report.finished, result.report.settings.workers) == (10, 2)
    ids = [sample.request_id for sample in result.samples]
    assert sorted(front_end.request_ids[2:]) == sorted(ids)
    assert len(set(ids)) == 10


def test_there_are_no_more_processes_than_requests_in_flight() -> None:
    result, _ = ran(Options(requests=3, workers=9, max_in_flight=1, **SMALL))
    assert result.report.settings.workers == 1


def test_ranges_prefix_and_turns_are_sent_and_said() -> None:
    options = Options(
        requests=4, warmup=0, input_len=Lengths(6, 9), output_len=Lengths(2, 3), prefix_len=5
    )
    result, front_end = ran(options)
    prompts = [body["prompt"] for body in front_end.bodies]
    assert all(6 <= len(prompt) <= 9 for prompt in prompts)
    assert len({tuple(prompt[:5]) for prompt in prompts}) == 1
    settings = result.report.settings
    assert (settings.input_len, settings.output_len, settings.prefix_len) == ("6-9", "2-3", 5)
    assert result.report.failed == 0


def test_prompts_come_again_when_reuse_is_asked_for() -> None:
    def prompts() -> list[list[int]]:
        _, front_end = ran(Options(requests=2, warmup=0, max_in_flight=1, reuse=True, **SMALL))
        return [body["prompt"] for body in front_end.bodies]

    assert prompts() == prompts()


def test_a_strict_servers_answers_may_be_shorter_and_extra_fields_are_sent() -> None:
    options = Options(
        requests=1, warmup=0, strict=True, extra={"top_p": 0.5, "max_tokens": 2}, **SMALL
    )
    result, front_end = ran(options)
    body = front_end.bodies[0]
    assert "ignore_eos" not in body
    assert (body["top_p"], body["max_tokens"]) == (0.5, 2)
    assert (result.report.failed, result.report.output_tokens) == (0, 2)


def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines: list[dict[str, object]] = [
        {"timestamp": at, "input_length": 4, "output_length": 2, "hash_ids": []}
        for at in (1000, 1000, 1050)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trace_is_sent_by_its_own_clock(tmp_path: Path) -> None:
    result, _ = ran(Options(dataset=trace(tmp_path), warmup=1))
    assert [sample.due_s for sample in result.samples] == pytest.approx([0.0, 0.0, 0.05])
    settings = result.report.settings
    assert settings.dataset == f"mooncake {tmp_path}/trace.jsonl"
    assert (settings.requests, settings.input_len, settings.turns) == (3, None, None)


def test_a_trace_with_a_rate_has_its_prompts_only(tmp_path: Path) -> None:
    options = Options(dataset=trace(tmp_path), warmup=0, rate_per_s=100.0, burstiness=math.inf)
    result, _ = ran(options)
    assert [sample.due_s for sample in result.samples] == pytest.approx([0.0, 0.01, 0.02])


def conversations(tmp_path: Path) -> Path:
    path = tmp_path / "talks.json"
    turns = [{"from": "human", "value": "one two three four"}, {"from": "gpt", "value": "yes"}]
    path.write_text(json.dumps([{"conversations": turns}] * 2))
    return path


def test_conversations_are_asked_as_chats_and_warmed_up_with_other_words(tmp_path: Path) -> None:
    options = Options(
        dataset=conversations(tmp_path), endpoint="chat", output_len=3, warmup=1, prompt_seed=1
    )
    result, front_end = ran(options)
    said = [body["messages"][0]["content"] for body in front_end.bodies]
    assert sorted(said[0].split()) == sorted(["one", "two", "three", "four"])
    assert said[0] != said[1]
    assert said[1:] == ["one two three four"] * 2
    assert (result.report.failed, result.report.settings.endpoint) == (0, "chat")


def test_a_duration_says_nothing_of_conversations(tmp_path: Path) -> None:
    options = Options(dataset=conversations(tmp_path), output_len=3, duration_s=1.0)
    with pytest.raises(UsageError, match="--duration needs --rate"):
        ran(options)


def test_failures_may_be_allowed_by_number_or_by_share() -> None:
    front_end = FakeFrontEnd()

    async def every_other(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(front_end.bodies) % 2:
            return web.Response(status=500, text="boom")
        return await completion(request, body)

    front_end.answer = every_other
    report = ran(Options(requests=4, warmup=0, **SMALL), front_end)[0].report
    assert report.failed == 2
    allowed = {0: False, 1: False, 2: True, 0.49: False, 0.5: True}
    found = {most: not Options(max_failures=most).too_many_failed(report) for most in allowed}
    assert found == allowed


@pytest.mark.parametrize(("text", "most"), [("3", 3), ("1%", 0.01), ("0.5", 0.5), ("0", 0)])
def test_how_many_may_fail_is_a_number_or_a_share(text: str, most: float) -> None:
    found = parse_max_failures(text)
    assert (found, type(found)) == (most, type(most))


def test_how_many_may_fail_is_nothing_else() -> None:
    with pytest.raises(UsageError, match="--max-failures few"):
        parse_max_failures("few")
