"""How `vdisagg up` shows its progress: a living table on a terminal, else a line per change.

A stream that takes no more, such as a full disk or a terminal that is gone, breaks nothing off.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Protocol, TextIO

from vdisagg.view.text import duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.live import Live
    from rich.table import Table

    from vdisagg.cluster.snapshot import Progress


class ProgressView(Protocol):
    """What up reports to; a context manager, so that the terminal is left in order."""

    def __enter__(self) -> ProgressView:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal in order."""

    def say(self, text: str) -> None:
        """One thing that the user should know."""

    def progress(self, entries: Sequence[Progress]) -> None:
        """How far everything has come."""


def progress_view(stream: TextIO | None = None) -> ProgressView:
    """The view that fits the stream (stderr unless given: stdout is for results)."""
    out = sys.stderr if stream is None else stream
    return LiveProgress(out) if out.isatty() else PlainProgress(out)


class PlainProgress:
    """One line per change of state, without control codes, for logs and pipes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown: dict[str, tuple[str, str]] = {}

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._out.write(text + "\n")
            self._out.flush()

    def progress(self, entries: Sequence[Progress]) -> None:
        for entry in entries:
            state = (entry.stage, entry.detail)
            if self._shown.get(entry.name) == state:
                continue
            self._shown[entry.name] = state
            detail = f" ({entry.detail})" if entry.detail else ""
            self.say(f"{duration(entry.elapsed_s):>8}  {entry.name}: {entry.stage}{detail}")


class LiveProgress:
    """A table that is redrawn in place."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=out)
        # Redrawn by us alone: no thread that would draw while a signal is handled.
        self._live: Live = Live(console=self._console, auto_refresh=False)
        self._done_after: dict[str, float] = {}

    def __enter__(self) -> LiveProgress:
        with contextlib.suppress(OSError):
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()

    def say(self, text: str) -> None:
        # Not wrapped: a command line must come out of the terminal as it went in.
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, entries: Sequence[Progress]) -> None:
        for entry in entries:
            if entry.done:
                self._done_after.setdefault(entry.name, entry.elapsed_s)
            else:
                self._done_after.pop(entry.name, None)
        with contextlib.suppress(OSError):
            self._live.update(self._table(entries), refresh=True)

    def _table(self, entries: Sequence[Progress]) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, pad_edge=False)
        for entry in entries:
            elapsed = self._done_after.get(entry.name, entry.elapsed_s)
            colour = "green" if entry.done else "red" if entry.stage == "dead" else "yellow"
            table.add_row(
                Text("✓" if entry.done else "…", style=colour),
                Text(entry.name),
                Text(entry.stage, style=colour),
                Text(duration(elapsed), style="dim", justify="right"),
                Text(entry.detail, style="dim"),
            )
        return table
