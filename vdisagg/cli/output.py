"""What commands say: results on stdout, remarks on stderr, and what becomes of a stream that takes no more.

A result that can't be written is a failure, but for a pipe whose reader has gone: he wanted no more. A
remark that can't be written is nobody's affair: what the command does is worth more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

import typer

from vdisagg.errors import Failure

LAST_STANDARD = 2  # stderr's descriptor
NEXT = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room within your quota",
    errno.EACCES: "see whose that is, and who may use it",
    errno.EPERM: "see whose that is, and who may use it",
    errno.EROFS: "have it writable, or name another place",
}
"""What can be done about an error of the system."""


def open_streams() -> None:
    """Open what was closed by whoever called us: a file would take its number, and get what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def close_streams() -> None:
    """Let go of what a stream would not take: else Python tries again at the end, and complains."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def tell(text: str, *, holds: str = "") -> bool:
    """Print a result on stdout, and a line's end. Returns whether somebody reads on.

    `holds`: what is so whether or not it could be told. Raises Failure where it could not.
    """
    try:
        typer.echo(text)
    except BrokenPipeError:
        return False
    except OSError as exc:
        besides = f" ({holds})" if holds else ""
        raise Failure(explain(exc, "stdout") + besides) from exc
    return True


def say_on_stderr(text: str) -> None:
    """One thing that the user should know, if he can be told."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def explain(exc: OSError, where: str) -> str:
    """An error of the system in words. `where` it came up, unless it names a file."""
    place = exc.filename if isinstance(exc.filename, str) else where
    what = exc.strerror or str(exc) or type(exc).__name__
    return f"{place}: {what}; next: {NEXT.get(exc.errno or 0, 'mend that, then the same again')}"
