"""What a living process changes while one is at it: its files, and what it holds open."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def texts(folder: Path) -> dict[Path, str]:
    """What every file in `folder` and below says; a temporary file that goes meanwhile is left out."""
    found = {}
    for path in _below(folder):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.read_text(errors="replace")
    return found


def modes(folder: Path) -> dict[str, int]:
    """The permission bits of every file and folder below `folder`, by name, as `texts` finds them."""
    found = {}
    for path in _below(folder):
        with suppress(FileNotFoundError):
            found[path.name] = stat.S_IMODE(path.stat().st_mode)
    return found


def remove(folder: Path) -> None:
    """Remove it with all that is in it, also what is written into it meanwhile."""
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


def held(pid: int) -> list[str]:
    """What the descriptors of process `pid` lead to: paths, `pipe:[…]`, `socket:[…]`."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208  # descriptors are no files
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))  # noqa: PTH115
    return found


def _below(folder: Path) -> Iterator[Path]:
    """`Path.rglob`, which may itself fail where a folder goes while it is read."""
    for where, folders, files in os.walk(folder):
        yield from (Path(where) / name for name in (*folders, *files))
