"""Prints what rich renders, on stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 200  # columns; rich would fold at 80 where there is no terminal to ask


def show(renderable: RenderableType) -> None:
    """Print to the terminal's width, or wide and without control codes into a pipe."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(width=width).print(renderable)
