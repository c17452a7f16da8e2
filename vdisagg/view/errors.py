"""Shows an error to people: on stderr, whole, never as a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from vdisagg.errors import Error

RED, PLAIN = "\x1b[31m", "\x1b[0m"


def show_error(error: Error, stream: TextIO | None = None) -> None:
    """Write `error: …`, its further lines as they are, if the stream takes them."""
    out = sys.stderr if stream is None else stream
    coloured = out.isatty() and "NO_COLOR" not in os.environ
    label = f"{RED}error:{PLAIN}" if coloured else "error:"
    with contextlib.suppress(OSError):
        out.write(f"{label} {error}\n")
        out.flush()
