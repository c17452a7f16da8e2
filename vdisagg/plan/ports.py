"""Ports from a first one upward, each given once on the whole cluster."""

from __future__ import annotations

from collections.abc import Collection

from vdisagg.errors import UsageError

LAST = 65535


class Ports:
    """Gives out ports in order, never one of `taken`. The same input gives the same ports."""

    def __init__(self, first: int, taken: Collection[int]) -> None:
        self._first = self._next = first
        self._taken = frozenset(taken)

    def take(self) -> int:
        """The next free port. Raises UsageError when there is none."""
        while self._next in self._taken:
            self._next += 1
        if self._next > LAST:
            raise UsageError(
                f"no port is left between {self._first} (ports.first) and {LAST}; lower ports.first"
            )
        self._next += 1
        return self._next - 1

    def take_many(self, count: int) -> tuple[int, ...]:
        """`count` ports in a row: rank offsets are added to the first of them."""
        while True:
            start = self.take()
            if all(self.take_or_skip(start + offset) for offset in range(1, count)):
                return tuple(range(start, start + count))

    def take_or_skip(self, port: int) -> bool:
        """Take the next port; whether it is `port`."""
        return self.take() == port
