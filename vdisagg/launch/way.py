"""What a dialogue needs of the way to a node: SSH's connection, or this machine's pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MOST_STDERR: Final = 4000
"""Characters of a command's standard error that are kept: the last ones."""

CLOSE_S: Final = 3.0
"""How long whoever lets a command go waits for its end."""


class Talk(Protocol):
    """A command that is spoken to."""

    def send(self, data: bytes, *, limit_s: float) -> None:
        """Write to its standard input. Raises Unreachable where the connection breaks; where the command
        has ended, nothing comes of it."""

    def lines(self) -> Iterator[str]:
        """Its standard output, until it ends; for one thread. Raises Unreachable where the connection
        breaks."""

    @property
    def stderr(self) -> str:
        """The last of its standard error so far, MOST_STDERR characters at most."""

    def suspect(self) -> None:
        """Let later commands go over another connection; this one goes on."""

    def close(self) -> None:
        """End its standard input, and let go of it."""


class Connection(Protocol):
    """What a dialogue needs of a connection. Calls raise Failure where it breaks."""

    def talk(self, words: Sequence[str]) -> Talk:
        """Start a command that is spoken to."""

    def lines(self, words: Sequence[str]) -> Iterator[str]:
        """A command's output as it comes; closing the iterator ends the command."""
