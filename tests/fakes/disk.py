"""A disk that is full: a small tmpfs, and a file that takes all that is left of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE = 1 << 20
FILLER = "filler"


class Disk:
    """A folder with a file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Nothing more can be written from now on; empty files still can be made."""
        with (self.path / FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        left = os.statvfs(self.path).f_bavail
        assert left == 0, f"{left} blocks are left"

    def empty(self) -> None:
        """There is room again."""
        (self.path / FILLER).unlink()


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Disk]:
    """A disk of a MiB at `path`; the test is skipped where this machine lets nobody mount one."""
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "small", str(path)]
    try:
        mounted = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
