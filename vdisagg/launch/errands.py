"""Small things that are done on a node: files written and removed, a line for an admin socket.

Like the guard it knows only the standard library and Python 3.8. Directories may begin with `~/`:

    errands.py write DIRECTORY              reads {path below it: text} as JSON on stdin
    errands.py remove DIRECTORY NAME…       those that are not there are no fault
    errands.py relay DIRECTORY NAME LIMIT_S sends stdin to that socket, prints the line that comes back

What fails is said on stderr, in one line, and ends it with exit code 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path


def write(directory: Path, files: dict[str, str]) -> None:
    """Write files, each whole or not at all, for nobody else to read; missing folders are made.

    Raises OSError that names the file.
    """
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part.{os.getpid()}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            part.replace(path)
        except OSError as exc:  # a failing write names no file
            part.unlink()
            raise OSError(exc.errno, exc.strerror, str(path)) from exc


def remove(directory: Path, names: list[str]) -> None:
    """Remove files, in this order."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()


def relay(directory: Path, name: str, line: str, limit_s: float) -> bytes:
    """One line to the socket, one line back. From within its directory: paths of sockets are short."""
    os.chdir(directory)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit_s)
        connection.connect(name)
        connection.sendall(line.encode())
        with connection.makefile("rb") as lines:
            return lines.readline()


def main(words: list[str]) -> None:
    command, directory, *rest = words
    place = Path(directory).expanduser()
    try:
        if command == "write":
            write(place, json.load(sys.stdin))
        elif command == "remove":
            remove(place, rest)
        elif command == "relay":
            sys.stdout.buffer.write(relay(place, rest[0], sys.stdin.read(), float(rest[1])))
        else:
            sys.exit(__doc__)
    except OSError as exc:
        sys.exit(f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc))


if __name__ == "__main__":
    main(sys.argv[1:])
