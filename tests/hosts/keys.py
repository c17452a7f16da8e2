"""Throw-away SSH keys, and an agent that holds some of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True)
class Key:
    """A key pair in two files, as ssh-keygen leaves it."""

    path: Path
    """The private half."""
    passphrase: str = ""

    @property
    def public(self) -> str:
        """The public half, one line: type, base64, comment."""
        return self.path.with_name(self.path.name + ".pub").read_text().strip()


def make_key(path: Path, kind: str = "ed25519", *, passphrase: str = "") -> Key:
    """Make a key pair in `path` and `path`.pub."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    words = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=60)
    return Key(path, passphrase)


class Agent:
    """A real ssh-agent with these keys, in this order. `environment` leads to it."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = tuple(keys)
        self._directory = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self._directory / "agent"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to find the agent."""
        return {"SSH_AUTH_SOCK": str(self.socket)}

    def __enter__(self) -> Agent:
        self._directory = Path(tempfile.mkdtemp(prefix="agent-"))  # a socket's path must be short
        words = ["ssh-agent", "-D", "-a", str(self.socket)]
        # It says where it listens only once it does.
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            assert self._process.stdout is not None
            assert b"SSH_AUTH_SOCK" in self._process.stdout.readline()
            for key in self._keys:
                self.add(key)
        except BaseException:
            self.close()
            raise
        return self

    def add(self, key: Key) -> None:
        """Give it one more key, opened with its passphrase."""
        ask = self._directory / "ask"
        ask.write_text('#!/bin/sh\nprintf "%s\\n" "$ANSWER"\n')
        ask.chmod(0o700)
        asking = {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": "none"}
        subprocess.run(
            ["ssh-add", "-q", str(key.path)],
            env={**os.environ, **self.environment, **asking, "ANSWER": key.passphrase},
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )

    def close(self) -> None:
        """End the agent; its keys are gone with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
