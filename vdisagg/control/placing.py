"""Where a request's legs run: a link, one engine alone, or nowhere yet.

Prefill must not run ahead of decode: a handle that decode can't read within its lease is lost work, and
memory of prefill's meanwhile. So a decode engine is given as many requests as it can run at once, and
beyond that what it is seen to finish within a third of the lease; the others are held.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from vdisagg.control.actions import Pair
from vdisagg.control.flight import Legs, Stage
from vdisagg.control.routing import Policy

REMEMBERED: Final = 64
"""Ends of requests by which a decode engine's pace is measured."""


class Ways(Protocol):
    """What placing has to know of the fleet."""

    def routable(self) -> Sequence[Pair]:
        """The links that users' requests may take."""

    def working_decode(self) -> Sequence[str]:
        """Decode engines that can compute a request alone."""

    def slots(self, name: str) -> int:
        """Requests that an engine runs at once; 0 where that is not known."""

    def full(self, name: str) -> bool:
        """Whether an engine has no room for more, by what it says itself."""

    def expired(self, name: str) -> int:
        """Leases that have run out on a prefill engine, as far as it has told."""

    def hopeful(self) -> bool:
        """Whether there may be a way in a moment: a link is being proved, an engine may be back."""

    def returning(self) -> bool:
        """Whether engines are just coming back to a new controller, so that there is no hurry."""


@dataclass(frozen=True, slots=True)
class Way:
    """The first leg: which, and where; and the link that is taken. `prefill` or `decode` empty: none."""

    stage: Stage
    at: str
    prefill: str
    decode: str


class Wait(Enum):
    """Why there is no way yet."""

    CROWDED = "all decode engines have as much as they can take"
    HOPE = "no working link between a prefill and a decode instance"


class Placing:
    """Chooses ways, and counts who is bound for which decode engine."""

    def __init__(
        self,
        ways: Ways,
        policy: Policy,
        in_flight: Mapping[str, int],
        *,
        lease_s: float,
        decode_alone: bool,
    ) -> None:
        self._ways = ways
        self._policy = policy
        self._in_flight = in_flight
        self._lease_s = lease_s
        self._decode_alone = decode_alone
        self._bound: Counter[str] = Counter()
        self._ends: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def choose(self, legs: Legs, avoid: Collection[Pair] = (), *, now: float) -> Way | Wait | None:
        """A way that avoids these links; ("", d) among them stands for d computing alone.

        None: there is none, and there is no telling when.
        """
        links = [link for link in self._ways.routable() if link not in avoid]
        if links:
            if legs is not Legs.PREFILL:
                links = [link for link in links if not self.crowded(link[1], now=now)]
            pair = self._policy.choose(links, self._loads())
            return self._over(pair, legs) if pair is not None else Wait.CROWDED
        if self._ways.returning():
            return Wait.HOPE
        if self._decode_alone:
            alone = [("", d) for d in self._ways.working_decode() if ("", d) not in avoid]
            if alone:
                free = [pair for pair in alone if not self.crowded(pair[1], now=now)]
                pair = self._policy.choose(free, self._loads())
                return Way(Stage.WHOLE, pair[1], "", pair[1]) if pair else Wait.CROWDED
        return Wait.HOPE if self._ways.hopeful() else None

    @staticmethod
    def _over(pair: Pair, legs: Legs) -> Way:
        if legs is Legs.PREFILL:
            return Way(Stage.WHOLE, pair[0], pair[0], "")
        if legs is Legs.DECODE:
            return Way(Stage.WHOLE, pair[1], "", pair[1])
        return Way(Stage.PREFILL, pair[0], *pair)

    def another_decode(self, prefill: str) -> str:
        """A decode engine for what `prefill` has just done; empty where there is none."""
        others = [link for link in self._ways.routable() if link[0] == prefill]
        pair = self._policy.choose(others, self._loads())
        return pair[1] if pair is not None else ""

    def crowded(self, decode: str, *, now: float) -> bool:
        """Whether a decode engine is bound to as much as it can take within the lease."""
        slots = self._ways.slots(decode)
        if self._ways.full(decode):
            return self._bound[decode] > 0  # an idle engine's word is old
        return slots > 0 and self._bound[decode] >= slots + self._ahead(decode, now=now)

    def _ahead(self, decode: str, *, now: float) -> int:
        """How many more it will have finished within a third of the lease, at its present pace."""
        ends = self._ends[decode]
        while ends and now - ends[0] > self._lease_s:
            ends.popleft()  # another time's pace
        if len(ends) < 2:
            return 1
        # Requests that were begun together end together: two ends in a moment are no pace.
        span_s = max(now - ends[0], self._lease_s / 3)
        return max(1, int(len(ends) / span_s * self._lease_s / 3))

    def _loads(self) -> Mapping[str, int]:
        """Legs at each engine; and at a decode engine also what is bound for it and being prefilled."""
        return {**self._in_flight, **self._bound}

    def bind(self, decode: str) -> None:
        """A request is on its way to a decode engine."""
        if decode:
            self._bound[decode] += 1

    def unbind(self, decode: str) -> None:
        """…and is not any more: ended, or placed elsewhere."""
        if decode:
            self._bound[decode] -= 1

    def finished(self, decode: str, *, now: float) -> None:
        """A decode engine has finished a request that was bound for it: that is its pace."""
        if decode:
            self._ends[decode].append(now)

    def full(self, decode: str) -> bool:
        """Whether a leg may have to wait for room on a decode engine."""
        slots = self._ways.slots(decode)
        return self._ways.full(decode) or (0 < slots < self._bound[decode])
