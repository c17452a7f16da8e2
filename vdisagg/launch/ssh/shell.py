"""A command on its way through a login shell that we do not know, and its output on the way back.

sshd hands the command line to the user's login shell, with `-c`: bash, zsh, fish, csh or another one,
whose rc files may print. So the line uses only what all of them read alike, and the real one is inside,
for sh; what stands between two unique markers is the command's own output, the rest is dropped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

PIECE = 500  # characters; old csh takes no word of more than 1023
PREFIX = "vdisagg-"

_ESCAPED = re.compile(rb"[^ -~]|['!\\]")
"""In single quotes these mean something to one shell or another: csh's history and newlines, fish's
backslash. All else stands for itself in every one of them."""
_PIECES = re.compile(rf"(?:\\0[0-7]{{3}}|[^\\]){{1,{PIECE // 5}}}")


def for_any_shell(script: str) -> str:
    """One line that makes any login shell run a script of POSIX sh, and nothing after it."""
    escaped = _ESCAPED.sub(lambda m: b"\\0%03o" % m[0][0], script.encode()).decode()
    pieces = " ".join(f"'{piece}'" for piece in _PIECES.findall(escaped))
    return f'exec sh -c \'eval "$(printf %b "$@")"\' sh {pieces}'


def command(words: Sequence[str], token: str) -> str:
    """The line for a command that gets our standard input, between markers with this token."""
    return for_any_shell("\n".join((_begin(token), shlex.join(words), "c=$?", _end(token))))


def watched_command(words: Sequence[str], token: str) -> str:
    """The same for a command without input that shall end when our end of the channel closes.

    sshd then closes the standard input, which is all that tells a command without a terminal.
    """
    script = (
        _begin(token),
        "exec 3<&0",
        f"{shlex.join(words)} </dev/null 3<&- &",
        "p=$!",
        "{ while read -r _; do :; done; kill $p; } <&3 >/dev/null 2>&1 &",
        "w=$!",
        "exec 3<&-",
        "wait $p",
        "c=$?",
        "kill $w 2>/dev/null",
        _end(token),
    )
    return for_any_shell("\n".join(script))


def _begin(token: str) -> str:
    """Written so that the marker is not in the line itself, which an rc file's `set -v` would print."""
    return f"printf '%s%s<\\n' {PREFIX} {token}\nprintf '%s%s<\\n' {PREFIX} {token} >&2"


def _end(token: str) -> str:
    marker = f"printf '%s%s>%d\\n' {PREFIX} {token} $c"
    return f"{marker} >&2\n{marker}\nexit $c"


class Stream:
    """What comes in on one of a command's two outputs, in whatever pieces."""

    def __init__(self, token: str) -> None:
        self._begin = f"{PREFIX}{token}<\n".encode()
        self._end = f"{PREFIX}{token}>".encode()
        self._held = b""
        self._begun = False
        self.noise = b""
        """The last of what came before the command's own output."""
        self.code: int | None = None
        """The command's exit code, once its output is complete."""

    def feed(self, data: bytes) -> bytes:
        """Take what has come in; return what of it is the command's own."""
        if self.code is not None:
            return b""
        self._held += data
        if not self._begun:
            noise, begin, rest = self._held.partition(self._begin)
            self.noise = (noise if begin else self._held)[-2000:]
            if not begin:
                self._held = self._held[-len(self._begin) :]
                return b""
            self._begun = True
            self._held = rest
        own, end, rest = self._held.partition(self._end)
        if end:
            self._held = end + rest
            code, newline, _ = rest.partition(b"\n")
            if newline:
                self.code = int(code)
            return own
        kept = self._possible_marker(own)
        self._held = own[len(own) - kept :]
        return own[: len(own) - kept]

    def _possible_marker(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of the end marker."""
        for length in range(min(len(self._end), len(data)), 0, -1):
            if self._end.startswith(data[-length:]):
                return length
        return 0
