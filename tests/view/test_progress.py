"""How `up` shows its progress, and where it can't."""

from __future__ import annotations

import io
import os
import pty
from pathlib import Path
from typing import TextIO

from vdisagg.cluster.snapshot import Progress
from vdisagg.view.progress import LiveProgress, PlainProgress, ProgressView, progress_view

ENTRY = Progress("p0", "loading", elapsed_s=3.0, done=False)


def tell(view: ProgressView) -> None:
    with view:
        view.say("one thing")
        view.progress([ENTRY])
        view.progress([Progress("p0", "ready", elapsed_s=4.0, done=True)])


def test_in_a_pipe_there_is_a_line_for_each_change() -> None:
    out = io.StringIO()
    view = progress_view(out)
    with view:
        view.progress([ENTRY])
        view.progress([ENTRY])
        view.say("one thing")
    assert out.getvalue() == "   3.0 s  p0: loading\none thing\n"


def give_up(out: TextIO) -> None:
    """Close it, and with it go what it could not write."""
    with Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), out.fileno())
    out.close()


def test_a_full_disk_breaks_nothing_off() -> None:
    out = Path("/dev/full").open("w")  # noqa: SIM115  # `give_up` closes it
    tell(PlainProgress(out))
    give_up(out)


def test_a_terminal_that_is_gone_breaks_nothing_off() -> None:
    ours, theirs = pty.openpty()
    out = os.fdopen(theirs, "w")
    view = progress_view(out)
    assert isinstance(view, LiveProgress)
    os.close(ours)
    tell(view)
    give_up(out)
