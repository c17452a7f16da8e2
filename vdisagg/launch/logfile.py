"""Reads a process's log, and goes on as it grows: as a module here, and on nodes.

Like the guard it knows only the standard library and Python 3.8:

    logfile.py tail DIRECTORY LINES
    logfile.py tail-before DIRECTORY LINES      the log before that
    logfile.py follow DIRECTORY LINES
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LOG_FILE = "log"
OLD_LOG_FILE = "log.1"
POLL_S = 0.2
MOST_LINES = 1_000_000  # held in memory at once


def tail(directory: Path, lines: int, name: str = LOG_FILE) -> list[str]:
    """The last lines of a log in a process's directory; empty when there is none."""
    try:
        with (directory / name).open(encoding="utf-8", errors="replace") as log:
            return [line.rstrip("\n") for line in deque(log, maxlen=lines)]
    except FileNotFoundError:
        return []


def follow(directory: Path, lines: int, wanted: Callable[[], bool] = lambda: True) -> Iterator[str]:
    """The last lines, then those that are added, also to the logs of later starts, while `wanted`."""
    path = directory / LOG_FILE
    while wanted():
        try:
            log = path.open(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            lines = MOST_LINES  # a log that begins while we watch is shown from its first line
            time.sleep(POLL_S)
            continue
        with log:
            yield from _lines_until_replaced(path, log, lines, wanted)
        lines = MOST_LINES


def _lines_until_replaced(
    path: Path, log: IO[str], lines: int, wanted: Callable[[], bool]
) -> Iterator[str]:
    """The last whole lines, then more as they come, until another file has taken the log's place."""
    own = os.fstat(log.fileno()).st_ino
    begun = ""
    last: deque[str] = deque(maxlen=min(lines, MOST_LINES))
    while wanted():
        replaced = _inode(path) != own  # asked before reading: what came until then is still read
        for piece in iter(log.readline, ""):
            begun += piece
            if begun.endswith("\n"):
                last.append(begun.rstrip("\n"))
                begun = ""
        yield from last
        last = deque()
        if replaced:
            if begun:
                yield begun
            return
        time.sleep(POLL_S)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _somebody_listens() -> bool:
    """Whether the other end of stdout is there: a log that says nothing would never find out."""
    poll = select.poll()
    poll.register(1, 0)  # errors and hang-ups are told without being asked for
    return not poll.poll(0)


def main(words: list[str]) -> None:
    command, directory, lines = words
    place, count = Path(directory).expanduser(), int(lines)
    if command == "follow":
        found: Iterable[str] = follow(place, count, _somebody_listens)
    else:
        found = tail(place, count, OLD_LOG_FILE if command == "tail-before" else LOG_FILE)
    out = sys.stdout.buffer  # the locale of a login over SSH may know no more than ASCII
    try:
        for line in found:
            out.write(line.encode("utf-8", "replace") + b"\n")
            if command == "follow":
                out.flush()
        out.flush()
    except BrokenPipeError:
        os._exit(0)  # nobody listens: that is how following ends; the usual exit would flush again


if __name__ == "__main__":
    main(sys.argv[1:])
