"""Which link carries a request. A policy takes the loads and returns a choice, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Policy(Protocol):
    """Chooses one of several (prefill, decode) pairs."""

    def choose(
        self, links: Sequence[tuple[str, str]], in_flight: Mapping[str, int]
    ) -> tuple[str, str] | None:
        """`in_flight`: requests under way per instance. None when there is no link to choose."""


class FewestInFlight:
    """The pair whose prefill, then decode engine has the fewest requests in flight.

    Ties go to the pair that was chosen longest ago, so that idle engines take turns.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[str, int] = {}

    def choose(
        self, links: Sequence[tuple[str, str]], in_flight: Mapping[str, int]
    ) -> tuple[str, str] | None:
        """See Policy."""
        if not links:
            return None
        last = self._last
        choice = min(
            links,
            key=lambda link: (
                in_flight.get(link[0], 0),
                in_flight.get(link[1], 0),
                last.get(link[0], -1),
                last.get(link[1], -1),
            ),
        )
        self._turn += 1
        last[choice[0]] = last[choice[1]] = self._turn
        return choice
