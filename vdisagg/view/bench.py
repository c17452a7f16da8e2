"""How `vdisagg bench` shows a run while it is under way, and its report."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from vdisagg.bench.report import percentile
from vdisagg.view.text import columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Group

    from vdisagg.bench.progress import Progress
    from vdisagg.bench.report import Report, Settings, Spread

REDRAW_S = 0.5  # seldom: the load generator shares the machine with what it measures
LINE_S = 10.0


class BenchProgress:
    """Follows a load from a thread of its own: live on a terminal, else a line now and then."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BenchProgress:
        if self._out.isatty():
            import rich.live
            import rich.progress_bar
            import rich.table  # noqa: F401 (now, not while requests are due)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def watch(self, progress: Progress) -> None:
        """Begin to show this load; what was shown before is over."""
        self.end()
        self._ended = threading.Event()
        show = self._live if self._out.isatty() else self._lines
        self._thread = threading.Thread(target=show, args=(progress, self._ended), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """What was shown is over."""
        self._ended.set()
        if self._thread:
            self._thread.join()

    def _live(self, progress: Progress, ended: threading.Event) -> None:
        from rich.console import Console
        from rich.live import Live

        began = time.monotonic()
        console = Console(file=self._out)
        with (
            contextlib.suppress(OSError),  # the terminal is gone: what is measured is not
            Live(console=console, auto_refresh=False, transient=True) as live,
        ):
            while True:
                live.update(_panel(progress, time.monotonic() - began), refresh=True)
                if ended.wait(REDRAW_S):
                    return

    def _lines(self, progress: Progress, ended: threading.Event) -> None:
        while not ended.wait(LINE_S):
            with contextlib.suppress(OSError):
                self._out.write(progress_line(progress) + "\n")
                self._out.flush()


def _panel(progress: Progress, elapsed_s: float) -> Group:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    done = f"{progress.finished}/{progress.total}"
    bar = ProgressBar(total=progress.total, completed=progress.finished, width=40)
    head.add_row(Text(progress.label or "load", style="bold"), bar, done, f"{elapsed_s:.0f} s")
    counts = Text(f"{progress.sent} sent, {progress.sent - progress.finished} in flight, ")
    counts.append(f"{progress.failed} failed", style="bold red" if progress.failed else "")
    late = Text(_late(progress), style="yellow" if progress.late else "")
    facts = Table.grid(padding=(0, 2))
    facts.add_row("requests", counts)
    facts.add_row("rate", _rate(progress))
    facts.add_row("sent late", late)
    for name, values in _latencies_so_far(progress):
        facts.add_row(name, values)
    return Group(head, facts)


def progress_line(progress: Progress) -> str:
    """How far a load is, in one line."""
    failed = f", {progress.failed} failed" if progress.failed else ""
    flying = progress.sent - progress.finished
    parts = [
        f"{progress.finished} of {progress.total} done, {flying} in flight{failed}",
        _rate(progress),
        *(f"{name} {values}" for name, values in _latencies_so_far(progress)),
    ]
    if progress.late:
        parts.append(f"sent late: {_late(progress)}")
    label = f"{progress.label}: " if progress.label else ""
    return label + "; ".join(parts)


def _rate(progress: Progress) -> str:
    achieved = progress.achieved_rate_per_s
    sent = "-" if achieved is None else f"{achieved:.3g}"
    asked = progress.asked_rate_per_s
    return f"{sent} requests/s sent" + ("" if asked is None else f", {asked:.3g} asked")


def _late(progress: Progress) -> str:
    return f"{progress.late} of {progress.sent}, at most {_ms(progress.latest_s)} ms"


def _latencies_so_far(progress: Progress) -> list[tuple[str, str]]:
    rows = []
    for name, gathered in (("TTFT", progress.ttft_s), ("TPOT", progress.tpot_s)):
        if values := sorted(gathered.values):
            median, p99 = (_ms(percentile(values, share)) for share in (0.5, 0.99))
            rows.append((name, f"p50 {median} p99 {p99} ms"))
    return rows


def report_text(report: Report, notes: Sequence[str] = ()) -> str:
    """The report for people. Latencies in milliseconds."""
    asked = report.settings
    facts = [("target", f"{asked.url}, model {asked.model}"), ("load", _load(asked))]
    facts.append(("asked", _asked(report)))
    achieved = report.achieved_rate_per_s
    if achieved is not None:
        processes = f" by {asked.workers} processes" if asked.workers > 1 else ""
        facts.append(("achieved", f"{achieved:.3g} requests/s sent{processes}"))
    if report.late and achieved is not None:
        late = report.late
        facts.append(
            ("sent late by", f"mean {_ms(late.mean)}, p99 {_ms(late.p99)}, max {_ms(late.max)} ms")
        )
    if report.held_s > 0 and achieved is not None:
        facts.append(("held back", f"{report.held_s:.2f} s by the cap on requests in flight"))
    facts += [
        ("finished", f"{report.finished} in {report.window_s:.2f} s, {report.failed} failed"),
        (
            "throughput",
            f"{report.requests_per_s:.2f} requests/s, {report.output_tokens_per_s:.1f} output tokens/s",
        ),
    ]
    if goodput := report.goodput:
        missed = ", ".join(f"{count} missed {bound}" for bound, count in goodput.missed.items())
        facts.append(
            (
                "goodput",
                f"{goodput.share:.1%} met {goodput.slo}, {goodput.per_s:.2f} requests/s; {missed}",
            )
        )
    facts.append(("tokens", f"{report.prompt_tokens} in, {report.output_tokens} out"))
    if report.prefix_hit_share is not None:
        facts.append(("prefix hits", f"{report.prefix_hit_share:.1%} of the prompts' tokens"))
    if report.links:
        pairs = [f"{_pair(each.prefill, each.decode)} {each.requests}" for each in report.links]
        facts.append(("requests over", ", ".join(pairs)))
    facts.append(("seeds", f"{asked.seed} for arrivals, {asked.prompt_seed} for prompts"))
    lines = columns([("", ""), *facts])[1:]
    lines += ["", *columns(_latencies(report))]
    for failure in report.failures:
        lines.append(f"{failure.count} failed: {failure.kind}: {failure.example}")
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines)


def _load(asked: Settings) -> str:
    parts = [f"{asked.requests} requests"]
    if asked.endpoint == "chat":
        parts[0] += " as chats"
    if asked.dataset != "random":
        parts.append(f"of {asked.dataset}")
    if asked.input_len is not None:
        parts.append(f"{asked.input_len} tokens in")
    if asked.output_len is not None:
        parts.append(f"{asked.output_len} {'out' if asked.input_len else 'tokens out'}")
    if asked.prefix_len:
        parts.append(f"the first {asked.prefix_len} the same in all")
    if isinstance(asked.turns, int) and asked.turns > 1:
        parts.append(f"{asked.turns} turns each")
    return ", ".join(parts)


def _asked(report: Report) -> str:
    asked = report.settings
    scheduled = report.scheduled_rate_per_s
    if asked.rate_per_s is not None:
        rate = f"{asked.rate_per_s:g} requests/s"
    elif scheduled is not None:
        rate = f"by the trace's clock, {scheduled:.3g} requests/s"
    else:
        rate = "all at once"
    ramp = f", rising to it for {asked.ramp_s:g} s" if asked.ramp_s else ""
    cap = f", at most {asked.max_in_flight} in flight" if asked.max_in_flight else ""
    return f"{rate}{ramp}{cap}"


def _pair(prefill: str, decode: str) -> str:
    return f"{prefill}→{decode}" if prefill else f"{decode} alone"


def _latencies(report: Report) -> list[tuple[str, ...]]:
    spreads = {"TTFT": report.ttft, "TPOT": report.tpot, "ITL": report.itl, "E2E": report.e2e}
    if phases := report.phases:
        spreads |= {
            "queue": phases.queue,
            "prefill": phases.prefill,
            "transfer": phases.transfer,
            "decode": phases.decode,
        }
    rows: list[tuple[str, ...]] = [("ms", "mean", "median", "p90", "p95", "p99", "max")]
    return rows + [(name, *_cells(spread)) for name, spread in spreads.items()]


def _cells(found: Spread | None) -> tuple[str, ...]:
    if found is None:
        return ("-",) * 6
    return tuple(map(_ms, (found.mean, found.median, found.p90, found.p95, found.p99, found.max)))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"
