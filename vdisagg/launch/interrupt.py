"""Signals as a question that is asked at safe points, instead of an exception at any point.

So a Ctrl-C never falls between a start and the record of it, and a second one never breaks the undo.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from vdisagg.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """While entered, SIGINT, SIGTERM and SIGHUP are noted; `check` raises for the first of them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._first: signal.Signals | None = None
        self._usual: dict[signal.Signals, object] = {}
        self._undoing = False

    def __enter__(self) -> Interrupt:
        for number in SIGNALS:
            self._usual[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, usual in self._usual.items():
            signal.signal(number, usual)  # type: ignore[arg-type]  # what signal.signal returned

    def check(self) -> None:
        """Raises Interrupted when a signal has come."""
        if self._first is not None:
            raise Interrupted(f"interrupted by {self._first.name}", self._first)

    def undoing(self) -> None:
        """From now on a signal only gets the answer that the undo is under way."""
        self._undoing = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = signal.Signals(number)
        if self._undoing:
            self._say("still ending what was started; this ends by itself")
        outer = getattr(self._usual[signal.Signals(number)], "__self__", None)
        if isinstance(outer, Interrupt):  # of whoever does several things, and stops after this one
            outer._note(number, frame)
