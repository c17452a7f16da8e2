"""`vdisagg bench` as a command: its exit code, and what it prints and saves."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from fakes.bench_runs import always, steady
from fakes.http_front_end import FakeFrontEnd, Handler
from vdisagg.bench.campaign import Campaign
from vdisagg.bench.options import Options
from vdisagg.bench.outcome import load
from vdisagg.bench.result import Result as Run
from vdisagg.cli import app
from vdisagg.cli.bench_end import Results, carry_out
from vdisagg.errors import Failure, Interrupted, UsageError

LOAD = ["--num-requests", "3", "--input-len", "5", "--output-len", "2", "--warmup", "0"]


@pytest.fixture
def front_end() -> Iterator[FakeFrontEnd]:
    """One that serves."""
    yield from served(FakeFrontEnd())


def served(fake: FakeFrontEnd) -> Iterator[FakeFrontEnd]:
    """It serves from a thread, for the command has an event loop of its own."""
    up = threading.Event()
    runner = asyncio.Runner()  # which also ends what never answers
    loop = runner.get_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with fake.serving():
            up.set()
            await end.wait()

    thread = threading.Thread(target=runner.run, args=(serve(),))
    thread.start()
    assert up.wait(60)
    yield fake
    loop.call_soon_threadsafe(end.set)
    thread.join(60)
    runner.close()


@pytest.fixture
def other() -> Iterator[FakeFrontEnd]:
    """A second one."""
    yield from served(FakeFrontEnd())


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


def bench(fake: FakeFrontEnd, *more: str) -> tuple[int, dict[str, Any]]:
    result = run("--url", fake.url, "--model", "m", *LOAD, "--json", *more)
    return result.exit_code, json.loads(result.stdout)


def test_all_answered_is_exit_code_0_and_the_file_is_written(
    front_end: FakeFrontEnd, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    code, outcome = bench(front_end, "--save", str(path))
    (only,) = outcome["runs"]
    assert (code, only["label"]) == (0, "")
    assert (only["report"]["finished"], only["report"]["output_tokens"]) == (3, 6)
    (saved,) = json.loads(path.read_text())["runs"]
    assert saved["report"] == only["report"]
    assert len(saved["samples"]) == 3


async def busy(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=503, text="busy")


def failing_once(fake: FakeFrontEnd) -> None:
    """The second request finds it busy."""
    good = fake.answer

    async def one_fails(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await (busy if len(fake.bodies) == 2 else good)(request, body)

    fake.answer = one_fails


def test_any_failed_request_is_exit_code_1(front_end: FakeFrontEnd) -> None:
    failing_once(front_end)
    code, outcome = bench(front_end)
    report = outcome["runs"][0]["report"]
    assert (code, report["finished"], report["failed"]) == (1, 2, 1)
    assert report["failures"] == [{"kind": "HTTP 503", "count": 1, "example": "busy"}]


@pytest.mark.parametrize(("allowed", "code"), [("1", 0), ("34%", 0), ("33%", 1), ("0", 1)])
def test_so_many_may_fail_as_is_said(front_end: FakeFrontEnd, allowed: str, code: int) -> None:
    failing_once(front_end)
    assert bench(front_end, "--max-failures", allowed)[0] == code


def test_a_baseline_gets_the_same_prompts_and_the_verdict_comes_first(
    front_end: FakeFrontEnd, other: FakeFrontEnd
) -> None:
    words = ("--url", front_end.url, "--model", "m", *LOAD, "--baseline-url", other.url)
    result = run(*words)
    assert result.exit_code == 0, result.output
    first, second = front_end.bodies, other.bodies
    assert [b["prompt"] for b in first] == [b["prompt"] for b in second]
    assert {b["cache_salt"] for b in first}.isdisjoint(b["cache_salt"] for b in second)
    sentence, *rest = result.stdout.splitlines()
    assert sentence.startswith("Not to be trusted (P/D: 3 requests are too few, it takes 100;")
    assert "P/D" in rest
    assert "baseline" in rest


def test_only_openais_fields_leave_no_salt_and_so_other_prompts(
    front_end: FakeFrontEnd, other: FakeFrontEnd
) -> None:
    words = ("--url", front_end.url, "--model", "m", *LOAD, "--strict")
    assert run(*words, "--baseline-url", other.url).exit_code == 0
    assert "cache_salt" not in front_end.bodies[0]
    assert front_end.bodies[0]["prompt"] != other.bodies[0]["prompt"]


def test_a_sweep_takes_the_rates_in_order_and_names_the_highest_that_is_good(
    front_end: FakeFrontEnd,
) -> None:
    code, outcome = bench(front_end, "--sweep", "400,200", "--slo", "e2e=60s")
    assert code == 0
    assert [each["label"] for each in outcome["runs"]] == ["200 requests/s", "400 requests/s"]
    (sweep,) = outcome["sweep"]
    assert sweep["best"]["rate_per_s"] == 400
    text = run("--url", front_end.url, "--model", "m", *LOAD, "--sweep", "200", "--slo", "e2e=60s")
    assert text.stdout.startswith("200 requests/s is the highest rate tried with 90 % of the ")


def test_two_sides_take_turns_at_each_rate_of_a_sweep(
    front_end: FakeFrontEnd, other: FakeFrontEnd
) -> None:
    words = ("--baseline-url", other.url, "--sweep", "200,400", "--slo", "e2e=60s")
    code, outcome = bench(front_end, *words)
    assert code == 0
    assert [each["label"] for each in outcome["runs"]] == [
        "P/D, 200 requests/s",
        "baseline, 200 requests/s",
        "P/D, 400 requests/s",
        "baseline, 400 requests/s",
    ]
    assert [each["label"] for each in outcome["sweep"]] == ["P/D", "baseline"]
    assert outcome["verdict"]["answer"] == "no difference"


def test_two_files_are_compared(front_end: FakeFrontEnd, tmp_path: Path) -> None:
    a, b = (str(tmp_path / name) for name in ("a.json", "b.json"))
    for path in (a, b):
        assert bench(front_end, "--save", path)[0] == 0
    text = run("compare", a, b)
    assert text.exit_code == 0
    assert text.stdout.startswith(f"A is {a}, B is {b}\n")
    assert "E2E mean ms" in text.stdout
    (compared,) = json.loads(run("compare", a, b, "--json").stdout)["compared"]
    assert "E2E mean" in [row["metric"] for row in compared["rows"]]


def test_a_file_to_compare_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    result = run("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{tmp_path}/a.json: can't be read: No such file or directory"


def test_the_page_is_written(front_end: FakeFrontEnd, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    assert bench(front_end, "--report", str(path))[0] == 0
    assert path.read_text().startswith("<!")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ratios", "1:1", "--baseline"], "--ratios goes with neither --baseline nor --sweep"),
        (["--ratios", "1:1", "--sweep", "1"], "--ratios goes with neither --baseline nor --sweep"),
        (["--ratios", "1:1"], "--ratios launches a cluster anew: it needs --name, not --url"),
        (["--baseline"], "--baseline needs a cluster of ours"),
        (["--baseline", "--baseline-url", "http://x"], "say --baseline or --baseline-url"),
        (["--sweep", "1,zero"], "--sweep 1,zero: rates above 0 are expected"),
        (["--sweep", "0"], "--sweep 0: rates above 0 are expected"),
        (["--attain", "1.5"], "--attain is 1.5; it must be above 0 and at most 1"),
        (["--slo", "ttft=5"], "--slo ttft=5: ttft is 5; it must be a number above 0 with its unit"),
        (["--input-len", "9:3"], "--input-len 9:3: the range ends before it begins"),
        (["--max-failures", "few"], "--max-failures few"),
        (["--sweep", "1", "--burstiness", "-1"], "--burstiness is -1; it must be above 0"),
        (["--rate", "20", "--duration", "1e9"], "say --num-requests or --duration, not both"),
        (["--block-tokens", "16"], "--block-tokens would change nothing: only the trace of a"),
        (
            ["--burstiness", "0.5"],
            "--burstiness would change nothing: it spreads the arrivals of a",
        ),
        (["--sweep", "1", "--rate", "2"], "--rate would change nothing: --sweep has the rates"),
        (["--name", "demo"], "--name would change nothing: --url is the server"),
        (["--attain", "0.5"], "--attain would change nothing: it is for --sweep and --ratios"),
        (["--dataset", "nowhere"], "nowhere: can't be read: No such file or directory"),
    ],
)
def test_what_cant_be_is_named_before_anything_is_sent(
    front_end: FakeFrontEnd, words: list[str], said: str
) -> None:
    result = run("--url", front_end.url, "--model", "m", *LOAD, *words)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(said)
    assert front_end.bodies == []


def test_what_a_file_of_requests_has_itself_is_not_asked_for_beside_it(
    front_end: FakeFrontEnd, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 6, "output_length": 2, "hash_ids": []}\n')
    words = ["--url", front_end.url, "--model", "m", "--dataset", str(trace), "--warmup", "0"]
    result = run(*words, "--input-len", "30", "--turns", "2", "--prefix-len", "3")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == (
        "--input-len, --prefix-len, --turns would change nothing: the prompts are those of --dataset; "
        "next: leave out what has no part in it"
    )
    assert front_end.bodies == []
    assert run(*words, "--block-tokens", "16", "--output-len", "3").exit_code == 0
    (body,) = front_end.bodies
    assert (len(body["prompt"]), body["max_tokens"]) == (6, 3)


def test_options_of_a_bench_before_compare_are_not_dropped() -> None:
    result = run("--rate", "3", "--json", "compare", "a.json", "b.json")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith("--json, --rate before compare would change nothing; ")


@pytest.mark.parametrize("option", ["--save", "--report"])
@pytest.mark.parametrize("where", ["nowhere/file", "", "x" * 300, "/dev/null"])
def test_a_file_that_cant_be_is_named_before_anything_is_sent(
    front_end: FakeFrontEnd, tmp_path: Path, option: str, where: str
) -> None:
    path = tmp_path / where
    result = run("--url", front_end.url, "--model", "m", *LOAD, option, str(path))
    assert isinstance(result.exception, Failure)
    assert str(path) in str(result.exception)
    assert front_end.bodies == []


def test_save_and_report_are_not_one_file(front_end: FakeFrontEnd, tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    result = run("--url", front_end.url, "--model", "m", *LOAD, "--save", path, "--report", path)
    assert isinstance(result.exception, UsageError)
    assert front_end.bodies == []


def from_the_second_run(fake: FakeFrontEnd, answer: Handler) -> None:
    """Three requests are answered well, and then it does something else."""
    good = fake.answer

    async def both(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await (good if len(fake.bodies) <= 3 else answer)(request, body)

    fake.answer = both


def test_a_later_run_that_fails_leaves_the_earlier_ones_printed_saved_and_on_the_page(
    front_end: FakeFrontEnd, other: FakeFrontEnd, tmp_path: Path
) -> None:
    from_the_second_run(other, busy)
    file, page = tmp_path / "run.json", tmp_path / "out.html"
    words = ["--url", front_end.url, "--model", "m", *LOAD, "--warmup", "1", "--num-requests", "2"]
    words += ["--baseline-url", other.url, "--sweep", "200,400", "--slo", "e2e=60s"]
    words += ["--save", str(file), "--report", str(page)]
    result = run(*words)
    why = (
        f"3 of 4 runs were measured, then: {other.url}: the warm-up request failed: HTTP 503: busy"
    )
    assert isinstance(result.exception, Failure)
    assert result.stdout.startswith(f"warning: cut short: {why}\n")
    assert "P/D: 400 requests/s is the highest rate tried" in result.stdout
    saved = load(file)
    assert (saved.cut_short, len(saved.runs), len(saved.sweep)) == (why, 3, 2)
    assert f"Cut short: {why}." in page.read_text()


def test_a_first_run_that_fails_leaves_nothing(front_end: FakeFrontEnd, tmp_path: Path) -> None:
    front_end.answer = busy
    path = tmp_path / "run.json"
    words = ("--url", front_end.url, "--model", "m", "--num-requests", "1", "--save", str(path))
    result = run(*words)
    assert isinstance(result.exception, Failure)
    assert (result.stdout, list(tmp_path.iterdir())) == ("", [])


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "1 of 2 runs were measured, then: interrupted by SIGINT"),
        (signal.SIGTERM, 143, "1 of 2 runs were measured, then: interrupted by SIGTERM"),
        (signal.SIGHUP, 129, "1 of 2 runs were measured, then: interrupted by SIGHUP"),
        (signal.SIGKILL, -9, "the bench was killed before its end"),
    ],
)
def test_a_signal_leaves_the_runs_that_had_ended(
    front_end: FakeFrontEnd, tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    second = threading.Event()

    async def silent(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        second.set()
        await asyncio.sleep(3600)
        return web.Response()

    from_the_second_run(front_end, silent)
    path = tmp_path / "run.json"
    words = ["--url", front_end.url, "--model", "m", *LOAD, "--sweep", "200,400", "--json"]
    words += ["--slo", "e2e=60s", "--save", str(path)]
    bench = subprocess.Popen(
        # whatever the signals of who runs the tests are
        ["env", "--default-signal", sys.executable, "-m", "vdisagg", "bench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert second.wait(60)
    bench.send_signal(number)
    out, err = bench.communicate(timeout=60)
    saved = load(path)
    assert (bench.returncode, saved.cut_short) == (code, said)
    assert [each.label for each in saved.runs] == ["200 requests/s"]
    if number != signal.SIGKILL:
        assert err.endswith(f"error: interrupted by {number.name}\n")
        printed = json.loads(out)
        assert (printed["cut_short"], len(printed["runs"])) == (said, 1)


def measured(*runs: Run) -> Campaign:
    campaign = Campaign(Options(), clock=lambda: 0.0)
    campaign.runs += runs
    return campaign


def test_a_file_that_can_no_longer_be_written_costs_neither_the_print_nor_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = steady("1:2", always(0.2), always(0.1), count=2)
    results = Results(tmp_path / "gone" / "run.json", None, as_json=False)

    def stopped() -> None:
        raise Interrupted("interrupted by SIGTERM", signal.SIGTERM)

    with pytest.raises(Interrupted) as raised:
        carry_out(measured(one), stopped, results, runs=3, by_ratio=True)
    assert raised.value.exit_code == 143
    out, err = capsys.readouterr()
    assert out.startswith(
        "warning: cut short: 1 of 3 runs were measured, then: interrupted by SIGT"
    )
    assert "With 1:2 the mean E2E is shortest: 0.60 s." in out
    assert err.startswith(f"error: {tmp_path}/gone/run.json: can't be written: ")
    with pytest.raises(Failure, match="can't be written"):
        carry_out(measured(one), lambda: None, results, runs=1)
    assert capsys.readouterr().out.startswith("1:2\n")


def test_a_file_that_can_t_be_written_between_runs_does_not_end_the_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = steady("", always(0.2), always(0.1), count=2)
    Results(tmp_path / "gone" / "x.json", None, as_json=False).keep(measured(one).outcome())
    assert (
        "can't be written: No such file or directory; the bench goes on" in capsys.readouterr().err
    )
