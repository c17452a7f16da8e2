"""What rich renders, as text for stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 200  # columns; rich would fold at 80 where there is no terminal to ask


def rendered(renderable: RenderableType) -> str:
    """To the terminal's width, or wide and without control codes for a pipe; no line's end at the end."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get().removesuffix("\n")
