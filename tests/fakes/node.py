"""A node without SSH: the same words, run on this machine in a home of the node's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from vdisagg.errors import Unreachable


class Completed(msgspec.Struct, frozen=True):
    code: int
    stdout: str
    stderr: str


class FakeConnection:
    """Implements launch.remote.Connection. While `cut` is set, every call fails as a broken link does."""

    def __init__(self, home: Path, name: str = "n1") -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.name = name
        self.path = os.environ["PATH"]
        self.cut = False
        self.closed = False
        self.ran: list[tuple[str, ...]] = []

    def run(self, words: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        self._refuse_if_cut()
        self.ran.append(tuple(words))
        try:
            done = subprocess.run(
                words,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=limit_s,
                **self._place(),  # type: ignore[call-overload]
            )
        except subprocess.TimeoutExpired as exc:
            raise Unreachable(f"{self.name}: no answer within {limit_s:g} s") from exc
        return Completed(done.returncode, done.stdout, done.stderr)

    def lines(self, words: Sequence[str]) -> Iterator[str]:
        self._refuse_if_cut()
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **self._place()) as process:  # type: ignore[call-overload]
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    yield line.rstrip("\n")
            finally:
                process.stdout.close()
                process.wait(10)  # it has to find out by itself

    def close(self) -> None:
        self.closed = True

    def _refuse_if_cut(self) -> None:
        if self.cut or self.closed:
            raise Unreachable(f"{self.name}: the connection is gone")

    def _place(self) -> dict[str, object]:
        environment = {"PATH": self.path, "HOME": str(self.home)}
        return {"env": environment, "cwd": self.home, "start_new_session": True}
