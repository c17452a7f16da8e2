import asyncio
import json
import math

import msgspec
import pytest
from aiohttp import web

from fakes.http_front_end import FakeFrontEnd, completion
from vdisagg.bench.client import Target
from vdisagg.bench.run import Options, Result, cluster_target, given_target, run, save
from vdisagg.errors import Failure, UsageError

SMALL = {"input_len": 5, "output_len": 3}


def ran(options: Options, front_end: FakeFrontEnd | None = None) -> tuple[Result, FakeFrontEnd]:
    front_end = front_end or FakeFrontEnd()

    async def main() -> Result:
        async with front_end.serving():
            return await run(options, Target(url=front_end.url, model="m"), clock=lambda: 1000.0)

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
    def prompts(**options) -> list[list[int]]:
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

    async def refuse(request, body):
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    front_end.answer = refuse
    with pytest.raises(Failure, match=r"HTTP 404: no such model; next: "):
        ran(Options(requests=2, **SMALL), front_end)
    assert len(front_end.bodies) == 1


def test_failures_are_counted_beside_the_good_ones() -> None:
    front_end = FakeFrontEnd()

    async def every_other(request, body):
        if len(front_end.bodies) % 2:
            return web.Response(status=500, text="boom")
        return await completion(request, body)

    front_end.answer = every_other
    result, _ = ran(Options(requests=6, warmup=0, **SMALL), front_end)
    assert (result.report.finished, result.report.failed) == (3, 3)
    assert result.report.failures[0].kind == "HTTP 500"
    assert result.report.failures[0].example == "boom"


def test_the_saved_file_holds_report_and_samples(tmp_path) -> None:
    result, _ = ran(Options(requests=2, **SMALL))
    path = tmp_path / "run.json"
    save(result, path)
    assert msgspec.json.decode(path.read_bytes(), type=Result) == result
    assert json.loads(path.read_text())["report"]["settings"]["rate_per_s"] is None
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_place_that_takes_no_file_is_a_failure(tmp_path) -> None:
    result, _ = ran(Options(requests=1, **SMALL))
    with pytest.raises(Failure, match="can't be written"):
        save(result, tmp_path / "missing" / "run.json")


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
    ],
)
def test_impossible_options_are_named(options, said) -> None:
    with pytest.raises(UsageError, match=said):
        Options(**options).check()


def test_a_duration_gives_as_many_requests_as_the_rate_asks() -> None:
    assert Options(duration_s=10.0, rate_per_s=2.5).count() == 25
    assert Options(duration_s=0.1, rate_per_s=1.0).count() == 1
    assert Options(requests=7).count() == 7


def test_a_url_is_taken_with_or_without_its_v1() -> None:
    assert given_target("http://h:1/v1/", "m").url == "http://h:1"
    assert given_target("http://h:1", "m").url == "http://h:1"


def test_a_url_needs_a_model_and_a_scheme() -> None:
    with pytest.raises(UsageError, match="--model"):
        given_target("http://h:1", None)
    with pytest.raises(UsageError, match="http://"):
        given_target("h:1", "m")


def test_the_key_comes_out_of_the_named_variable(monkeypatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    assert given_target("http://h:1", "m", "SOME_KEY").api_key == "secret"
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(UsageError, match="SOME_KEY"):
        given_target("http://h:1", "m", "SOME_KEY")


def test_a_cluster_that_is_not_up_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(Failure, match="cluster demo is not up"):
        cluster_target("demo")
    assert not list(tmp_path.iterdir())
