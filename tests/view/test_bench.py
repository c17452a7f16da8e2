import io

import msgspec

from fakes.bench_runs import failed, settings, uneven
from vdisagg.bench.progress import LATE_S, Progress
from vdisagg.bench.report import report
from vdisagg.bench.samples import Phases
from vdisagg.bench.slo import Slo
from vdisagg.view.bench import BenchProgress, progress_line, report_text

SETTINGS = settings(url="http://127.0.0.1:8000", requests=3, output_len=3, prompt_seed=7)
GOOD = uneven(0, 0.001)
LATER = uneven(0, 0.501)
FAILED = failed(2, sent_s=1.001, detail="boom")


def test_the_report_reads_like_this() -> None:
    text = report_text(report(SETTINGS, [GOOD, LATER, FAILED], held_s=0.0))
    assert text.splitlines() == [
        "target        http://127.0.0.1:8000, model m",
        "load          3 requests, 10 tokens in, 3 out",
        "asked         2 requests/s",
        "achieved      2 requests/s sent",
        "sent late by  mean 1.00, p99 1.00, max 1.00 ms",
        "finished      2 in 1.00 s, 1 failed",  # from 0.001 to the failure at 1.001
        "throughput    2.00 requests/s, 6.0 output tokens/s",
        "tokens        20 in, 6 out",
        "seeds         0 for arrivals, 7 for prompts",
        "",
        "ms    mean    median  p90     p95     p99     max",
        "TTFT  100.00  100.00  100.00  100.00  100.00  100.00",
        "TPOT  100.00  100.00  100.00  100.00  100.00  100.00",
        "ITL   100.00  100.00  150.00  150.00  150.00  150.00",
        "E2E   300.00  300.00  300.00  300.00  300.00  300.00",
        "1 failed: HTTP 500: boom",
    ]


def test_what_was_not_measured_is_a_dash() -> None:
    text = report_text(report(SETTINGS, [FAILED], held_s=0.0))
    assert "TTFT  -     -       -    -    -    -" in text


def test_a_load_without_a_rate_says_so() -> None:
    asked = msgspec.structs.replace(SETTINGS, rate_per_s=None, max_in_flight=32)
    text = report_text(report(asked, [GOOD], held_s=1.0))
    assert "sent late" not in text
    assert "all at once, at most 32 in flight" in text
    assert "late" not in text


def test_progress_ends_with_its_block_and_without_control_codes_in_a_pipe() -> None:
    out = io.StringIO()
    with BenchProgress(out) as view:
        view.watch(Progress(3))
    assert out.getvalue() == ""


def test_goodput_phases_links_and_notes_are_shown_where_there_are_any() -> None:
    both = Phases("p0", "d0", queue_s=0.01, prefill_s=0.06, transfer_s=0.03, decode_s=0.2)
    alone = Phases("", "d1", queue_s=0.03, prefill_s=None, transfer_s=None, decode_s=0.2)
    samples = [msgspec.structs.replace(GOOD, phases=phases) for phases in (both, alone)]
    found = report(SETTINGS, [*samples, FAILED], held_s=0.0, slo=Slo(ttft_s=0.5, tpot_s=0.05))
    lines = report_text(found, ["p0→d1 carried nothing"]).splitlines()
    # Both have a TPOT of 100 ms; 3 requests, none of which met both bounds.
    assert (
        "goodput        0.0% met ttft=500ms,tpot=50ms, 0.00 requests/s; 0 missed ttft, 2 missed tpot"
        in lines
    )
    assert "requests over  d1 alone 1, p0→d0 1" in lines
    assert "queue     20.00   20.00   28.00   29.00   29.80   30.00" in lines
    assert "transfer  30.00   30.00   30.00   30.00   30.00   30.00" in lines
    assert lines[-1] == "note: p0→d1 carried nothing"


def test_a_trace_a_ramp_and_several_processes_are_said() -> None:
    more = {"rate_per_s": None, "dataset": "mooncake t.jsonl", "input_len": None, "workers": 2}
    asked = msgspec.structs.replace(SETTINGS, **more, output_len=None, ramp_s=5.0)
    text = report_text(report(asked, [GOOD, LATER], held_s=0.0))
    assert "load          3 requests, of mooncake t.jsonl" in text
    assert "asked         by the trace's clock, 2 requests/s, rising to it for 5 s" in text
    assert "achieved      2 requests/s sent by 2 processes" in text


def going(label: str = "") -> Progress:
    """Three of four sent, one late; two have ended, one of them well."""
    progress = Progress(4, asked_rate_per_s=2.0, label=label)
    progress.on_sent(0.0, 0.0)
    progress.on_sent(0.5, 2 * LATE_S)
    progress.on_sent(1.0, LATE_S)
    progress.on_finished(GOOD)
    progress.on_finished(FAILED)
    return progress


def test_a_load_under_way_is_told_in_one_line() -> None:
    assert progress_line(going("P/D")) == (
        "P/D: 2 of 4 done, 1 in flight, 1 failed; 2 requests/s sent, 2 asked; "
        "TTFT p50 100.00 p99 100.00 ms; TPOT p50 100.00 p99 100.00 ms; "
        "sent late: 1 of 3, at most 20.00 ms"
    )
    assert progress_line(Progress(4)) == "0 of 4 done, 0 in flight; - requests/s sent"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_it_live() -> None:
    out = Terminal()
    with BenchProgress(out) as view:
        view.watch(going("colocated"))
        view.watch(going("P/D"))
    shown = out.getvalue()
    for words in ("colocated", "P/D", "2/4", "1 in flight", "1 failed", "2 asked", "TPOT"):
        assert words in shown
    assert shown.index("colocated") < shown.index("P/D")
