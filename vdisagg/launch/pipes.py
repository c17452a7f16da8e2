"""A command on this machine that is spoken to, as one on a node is (see launch/ssh/talk.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from vdisagg.launch.way import CLOSE_S, MOST_STDERR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


class PipeTalk:
    """Implements launch.way.Talk."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        """Raises OSError where it can't be started."""
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=directory,
            start_new_session=True,  # so that what it has left can be ended with it
        )
        self._stderr = ""
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            for line in stderr:
                self._stderr = (self._stderr + line.decode(errors="replace"))[-MOST_STDERR:]

    def send(self, data: bytes, *, limit_s: float) -> None:
        assert self._process.stdin is not None
        # It has ended, or has been let go: `lines` tells that.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                yield line.decode(errors="replace").rstrip("\n")
        self._process.wait()
        self._listening.join(CLOSE_S)

    @property
    def stderr(self) -> str:
        return self._stderr.strip()

    def suspect(self) -> None:
        """There is no other way to this machine."""

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        with contextlib.suppress(ProcessLookupError):  # a step that hangs goes with it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Here:
    """Implements launch.way.Connection for this machine."""

    def talk(self, words: Sequence[str]) -> PipeTalk:
        return PipeTalk(words)

    def lines(self, words: Sequence[str]) -> Iterator[str]:
        talk = PipeTalk(words)
        with contextlib.closing(talk):
            yield from talk.lines()
