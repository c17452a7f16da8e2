"""Small things of text: columns, numbers and durations. No rich here: `status` and `check` do without."""

from __future__ import annotations

import shutil
import sys
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


LEAST = 20
"""Columns of text that a last cell has at least, however wide the others are."""


def columns(rows: Sequence[Sequence[str]], *, width: int | None = None) -> list[str]:
    """Rows as lines whose cells stand under each other; the first row is the heading.

    With `width` (in characters) the last cell goes on in further lines where it would be too long.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        widths[-1] = max(width - sum(widths[:-1]) - 2 * len(widths[:-1]), LEAST)
        rows = [line for row in rows for line in _wrapped(row, widths[-1])]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def terminal_width() -> int | None:
    """Characters in a line of the terminal that stdout is; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _wrapped(row: Sequence[str], width: int) -> list[tuple[str, ...]]:
    *cells, last = row
    # Long words are paths and the like: whole, they can be copied.
    pieces = wrap(last, width, break_long_words=False, break_on_hyphens=False) or [""]
    blank = [""] * len(cells)
    return [(*(blank if number else cells), piece) for number, piece in enumerate(pieces)]


def number(value: float) -> str:
    """Three significant digits, all of those before the point, thousands apart."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ms(seconds: float) -> str:
    """Milliseconds without the unit."""
    return number(1000 * seconds)


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `5 h 2 min`, `2 d 4 h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {smaller_unit}"
    return f"{whole} s"
