"""Where requests may go, as a test says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from vdisagg.control.actions import Pair


class FakeWays:
    """Implements control.placing.Ways. `links` is what routable() answers, at the time of asking."""

    def __init__(self, links: Callable[[], Sequence[Pair]]) -> None:
        self._links = links
        self.alone: list[str] | None = None
        """Decode engines that work; None: those of the links."""
        self.slots_each = 0
        self.full_ones: set[str] = set()
        self.expiries: Counter[str] = Counter()
        self.hope = False
        self.coming = False
        self.others: list[str] = []
        """Engines that work and have no link."""

    def routable(self) -> Sequence[Pair]:
        return self._links()

    def working_decode(self) -> Sequence[str]:
        if self.alone is not None:
            return self.alone
        return list(dict.fromkeys(d for _, d in self._links()))

    def working(self) -> Sequence[str]:
        ends = (name for link in self._links() for name in link)
        return list(dict.fromkeys((*ends, *(self.alone or ()), *self.others)))

    def awaited(self) -> bool:
        return self.hope

    def slots(self, name: str) -> int:
        return self.slots_each

    def full(self, name: str) -> bool:
        return name in self.full_ones

    def expired(self, name: str) -> int:
        return self.expiries[name]

    def hopeful(self) -> bool:
        return self.hope

    def returning(self) -> bool:
        return self.coming
