import io
import json

import msgspec

from vdisagg.bench.load import Progress
from vdisagg.bench.report import Settings, report
from vdisagg.bench.samples import Sample
from vdisagg.view.bench import BenchProgress, report_json, report_text

SETTINGS = Settings(
    url="http://127.0.0.1:8000",
    model="m",
    requests=3,
    rate_per_s=2.0,
    burstiness=1.0,
    max_in_flight=None,
    input_len=10,
    output_len=3,
    seed=0,
    prompt_seed=7,
    warmup=2,
    started=0.0,
)
GOOD = Sample(
    number=0,
    due_s=0.0,
    sent_s=0.001,
    first_s=0.101,
    last_s=0.301,
    prompt_tokens=10,
    output_tokens=3,
    gaps_s=[0.05, 0.15],
)
LATER = msgspec.structs.replace(GOOD, due_s=0.5, sent_s=0.501, first_s=0.601, last_s=0.801)
FAILED = Sample(number=2, due_s=1.0, sent_s=1.001, failure="HTTP 500", detail="boom")


def test_the_report_reads_like_this() -> None:
    text = report_text(report(SETTINGS, [GOOD, LATER, FAILED], held_s=0.0))
    assert text.splitlines() == [
        "target        http://127.0.0.1:8000, model m",
        "load          3 requests, 10 tokens in, 3 out",
        "asked         2 requests/s",
        "achieved      2 requests/s sent",
        "sent late by  mean 1.00, p99 1.00, max 1.00 ms",
        "finished      2 in 0.80 s, 1 failed",
        "throughput    2.50 requests/s, 7.5 output tokens/s",
        "tokens        20 in, 6 out",
        "seeds         0 for arrivals, 7 for prompts",
        "",
        "ms    mean    median  p90     p99     max",
        "TTFT  100.00  100.00  100.00  100.00  100.00",
        "TPOT  100.00  100.00  100.00  100.00  100.00",
        "ITL   100.00  100.00  150.00  150.00  150.00",
        "E2E   300.00  300.00  300.00  300.00  300.00",
        "1 failed: HTTP 500: boom",
    ]


def test_what_was_not_measured_is_a_dash() -> None:
    text = report_text(report(SETTINGS, [FAILED], held_s=0.0))
    assert "TTFT  -     -       -    -    -" in text


def test_a_load_without_a_rate_says_so() -> None:
    settings = msgspec.structs.replace(SETTINGS, rate_per_s=None, max_in_flight=32)
    text = report_text(report(settings, [GOOD], held_s=1.0))
    assert "all at once, at most 32 in flight" in text
    assert "late" not in text


def test_json_is_the_report_in_seconds() -> None:
    found = json.loads(report_json(report(SETTINGS, [GOOD], held_s=0.0)))
    assert found["ttft"]["mean"] == 0.1
    assert found["settings"]["prompt_seed"] == 7


def test_progress_ends_with_its_block_and_without_control_codes_in_a_pipe() -> None:
    out = io.StringIO()
    with BenchProgress(out) as view:
        view.watch(Progress(3))
    assert out.getvalue() == ""
