"""How `vdisagg bench` shows its progress and its report."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, TextIO

import msgspec

from vdisagg.view.text import columns

if TYPE_CHECKING:
    from types import TracebackType

    from vdisagg.bench.progress import Progress
    from vdisagg.bench.report import Report, Spread

REDRAW_S = 0.5  # seldom: the load generator shares the machine with what it measures
LINE_S = 10.0


class BenchProgress:
    """Follows the counts from a thread of its own: a bar on a terminal, else a line now and then."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BenchProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()

    def watch(self, progress: Progress) -> None:
        """Begin to show these counts."""
        show = self._bar if self._out.isatty() else self._lines
        self._thread = threading.Thread(target=show, args=(progress,), daemon=True)
        self._thread.start()

    def _bar(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        shown = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
            TimeElapsedColumn(),
        )
        console = Console(file=self._out)
        with Bars(*shown, console=console, auto_refresh=False, transient=True) as bars:
            task = bars.add_task("", total=progress.total, more="")
            while not self._ended.wait(REDRAW_S):
                bars.update(task, completed=progress.finished, more=_counts(progress))
                bars.refresh()

    def _lines(self, progress: Progress) -> None:
        while not self._ended.wait(LINE_S):
            self._out.write(f"{progress.finished} of {progress.total} done, {_counts(progress)}\n")
            self._out.flush()


def _counts(progress: Progress) -> str:
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{progress.sent - progress.finished} in flight{failed}"


def report_text(report: Report) -> str:
    """The report for people. Latencies in milliseconds."""
    asked = report.settings
    rate = "all at once" if asked.rate_per_s is None else f"{asked.rate_per_s:g} requests/s"
    cap = f", at most {asked.max_in_flight} in flight" if asked.max_in_flight else ""
    achieved = report.achieved_rate_per_s
    facts = [
        ("target", f"{asked.url}, model {asked.model}"),
        ("load", f"{asked.requests} requests, {asked.input_len} tokens in, {asked.output_len} out"),
        ("asked", f"{rate}{cap}"),
    ]
    if achieved is not None:
        facts.append(("achieved", f"{achieved:.3g} requests/s sent"))
    if report.late and asked.rate_per_s is not None:
        late = report.late
        facts.append(
            ("sent late by", f"mean {_ms(late.mean)}, p99 {_ms(late.p99)}, max {_ms(late.max)} ms")
        )
    if report.held_s > 0 and asked.rate_per_s is not None:
        facts.append(("held back", f"{report.held_s:.2f} s by the cap on requests in flight"))
    facts += [
        ("finished", f"{report.finished} in {report.window_s:.2f} s, {report.failed} failed"),
        (
            "throughput",
            f"{report.requests_per_s:.2f} requests/s, {report.output_tokens_per_s:.1f} output tokens/s",
        ),
        ("tokens", f"{report.prompt_tokens} in, {report.output_tokens} out"),
    ]
    if report.prefix_hit_share is not None:
        facts.append(("prefix hits", f"{report.prefix_hit_share:.1%} of the prompts' tokens"))
    facts.append(("seeds", f"{asked.seed} for arrivals, {asked.prompt_seed} for prompts"))
    lines = columns([("", ""), *facts])[1:]
    lines += ["", *columns(_latencies(report))]
    for failure in report.failures:
        lines.append(f"{failure.count} failed: {failure.kind}: {failure.example}")
    return "\n".join(lines)


def _latencies(report: Report) -> list[tuple[str, ...]]:
    spreads = {"TTFT": report.ttft, "TPOT": report.tpot, "ITL": report.itl, "E2E": report.e2e}
    rows: list[tuple[str, ...]] = [("ms", "mean", "median", "p90", "p99", "max")]
    return rows + [(name, *_cells(spread)) for name, spread in spreads.items()]


def _cells(spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * 5
    return tuple(map(_ms, (spread.mean, spread.median, spread.p90, spread.p99, spread.max)))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


def report_json(report: Report) -> str:
    """The same for programs, in seconds."""
    return json.dumps(msgspec.to_builtins(report), indent=2)
