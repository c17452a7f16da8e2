"""However a bench ends, what it has measured is in its files and on stdout."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vdisagg.cli.output import say_on_stderr, tell
from vdisagg.errors import Error, Failure, Interrupted, UsageError
from vdisagg.view.errors import show_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from vdisagg.bench.campaign import Campaign
    from vdisagg.bench.outcome import Outcome


@dataclass(frozen=True)
class Results:
    """Where they go, beside stdout."""

    save: Path | None
    report: Path | None
    as_json: bool

    def ready(self) -> None:
        """Before anything is measured: an hour's bench is not to end with a file that can't be written.

        Raises Failure naming the file, UsageError where both are the same one.
        """
        from vdisagg.bench import whole

        if self.save is not None:
            whole.ready(self.save)
        if self.report is not None:
            from vdisagg.view import page

            page.ready(self.report)
            if self.save is not None and self.save.resolve() == self.report.resolve():
                raise UsageError(f"--save and --report both name {self.save}: say two files")

    def keep(self, outcome: Outcome) -> None:
        """After each run: whatever kills the bench now, the runs until then are in the file."""
        if fault := self._saved(outcome):
            say_on_stderr(f"{fault}; the bench goes on")

    def give(self, outcome: Outcome) -> list[Failure]:
        """Write the files, then print: each, whatever becomes of the others. Returns what could not be written."""
        faults = [self._saved(outcome), self._reported(outcome), self._printed(outcome)]
        if self.report is not None and faults[1] is None:
            say_on_stderr(f"the page is {self.report}")
        return [fault for fault in faults if fault is not None]

    def _saved(self, outcome: Outcome) -> Failure | None:
        from vdisagg.bench.outcome import save

        try:
            if self.save is not None:
                save(outcome, self.save)
        except Failure as fault:
            return fault
        return None

    def _reported(self, outcome: Outcome) -> Failure | None:
        from vdisagg.view import page

        try:
            if self.report is not None:
                page.write(outcome, self.report)
        except Failure as fault:
            return fault
        return None

    def _printed(self, outcome: Outcome) -> Failure | None:
        import json

        from vdisagg.view.outcome import outcome_text
        from vdisagg.view.verdict import outcome_json

        as_json = self.as_json
        try:
            tell(json.dumps(outcome_json(outcome), indent=2) if as_json else outcome_text(outcome))
        except Failure as fault:
            return fault
        return None


def carry_out(
    campaign: Campaign,
    measure: Callable[[], None],
    results: Results,
    *,
    runs: int,
    by_ratio: bool = False,
) -> Outcome:
    """Measure, and give the results of all runs that ended, of `runs` in all: also where a later one
    fails, or a signal comes. `by_ratio`: as for the campaign's outcome.

    Raises what `measure` raised, Interrupted for a signal, and Failure for a file that could not be
    written: each when all else is done.
    """
    errors: list[Error] = []
    with signals_raise():
        try:
            with signals_raise():
                measure()
        except Error as error:
            if not campaign.runs:
                raise
            errors.append(error)
        cut_short = _cut_short(len(campaign.runs), runs, errors[0]) if errors else ""
        outcome = campaign.outcome(by_ratio=by_ratio, cut_short=cut_short)
        errors += results.give(outcome)
    for further in errors[1:]:
        show_error(further)
    if errors:
        raise errors[0]
    return outcome


def _cut_short(ended: int, runs: int, why: Error) -> str:
    """`1 of 3 runs were measured, then: interrupted by SIGINT`."""
    what = str(why).partition("; next: ")[0]
    return f"{ended} of {runs} runs were measured, then: {what}"


@contextmanager
def signals_raise() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the block with Interrupted, after whatever it does at Ctrl-C.

    A signal that is ignored, as SIGHUP is below nohup, stays so.
    """
    came: list[signal.Signals] = []

    def as_ctrl_c(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        handler = signal.getsignal(signal.SIGINT)  # asyncio's cancels its task
        at_ctrl_c = handler if callable(handler) else signal.default_int_handler
        at_ctrl_c(signal.SIGINT, frame)

    usual = {
        number: signal.signal(number, as_ctrl_c)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    except KeyboardInterrupt:
        first = came[0] if came else signal.SIGINT
        raise Interrupted(f"interrupted by {first.name}", first) from None
    finally:
        for number, before in usual.items():
            signal.signal(number, before)
