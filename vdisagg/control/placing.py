"""Where a request's legs run: a link, one engine alone, or nowhere yet.

Prefill must not run ahead of decode: a handle that decode can't read within its lease is lost work, and
memory of prefill's meanwhile. So a decode engine is given as many requests as it can run at once, and
beyond that what it is seen to finish within a third of the lease; the others are held.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Final, Protocol

import msgspec

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

    def working(self) -> Sequence[str]:
        """Engines of either role that requests may be sent to."""

    def slots(self, name: str) -> int:
        """Requests that an engine runs at once; 0 where that is not known."""

    def full(self, name: str) -> bool:
        """Whether an engine has no room for more, by what it says itself."""

    def expired(self, name: str) -> int:
        """Leases that have run out on a prefill engine, as far as it has told."""

    def hopeful(self) -> bool:
        """Whether there may be a way in a moment: a link is being proved, an engine may be back."""

    def awaited(self) -> bool:
        """Whether an engine may be back in a moment."""

    def returning(self) -> bool:
        """Whether engines are just coming back to a new controller, so that there is no hurry."""


class Way(msgspec.Struct, frozen=True):
    """The first leg: which, and where; and the link that is taken. `prefill` or `decode` empty: none."""

    stage: Stage
    at: str
    prefill: str
    decode: str


class Wait(Enum):
    """Why there is no way yet."""

    CROWDED = auto()
    """All engines have as much as they can take."""
    HOPE = auto()
    """None works, but one may in a moment."""


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
        if legs is Legs.ANYWHERE:
            return self._anywhere(avoid, now=now)
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

    def _anywhere(self, avoid: Collection[Pair], *, now: float) -> Way | Wait | None:
        """The engine of either role that has least to do. No handle waits for it: what memory it has,
        and what it does about it, is its own business."""
        working = [name for name in self._ways.working() if ("", name) not in avoid]
        if not working:
            return Wait.HOPE if self._ways.awaited() else None
        # At a prefill engine nothing is bound; at a decode engine little is that is not bound for it.
        loads = {name: max(self._bound[name], self._in_flight.get(name, 0)) for name in working}
        free = [("", name) for name in working if not self._filled(name, loads[name], now=now)]
        pair = self._policy.choose(free, loads)
        if pair is None:
            return Wait.CROWDED
        name = pair[1]
        decodes = name in self._ways.working_decode()
        return Way(Stage.WHOLE, name, *(("", name) if decodes else (name, "")))

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

    def all_with(self, name: str) -> set[Pair]:
        """All ways that need an instance: its links, and what it would compute alone."""
        return {("", name), *(link for link in self._ways.routable() if name in link)}

    def crowded(self, decode: str, *, now: float) -> bool:
        """Whether a decode engine is bound to as much as it can take within the lease."""
        if self._ways.full(decode):
            return self._bound[decode] > 0  # an idle engine's word is old
        return self._filled(decode, self._bound[decode], now=now)

    def _filled(self, name: str, load: int, *, now: float) -> bool:
        """Whether `load` requests are as many as an engine runs at once, and the next ones."""
        slots = self._ways.slots(name)
        return slots > 0 and load >= slots + self._ahead(name, now=now)

    def _ahead(self, name: str, *, now: float) -> int:
        """How many more it will have finished within a third of the lease, at its present pace."""
        ends = self._ends[name]
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

    def finished(self, name: str, *, now: float) -> None:
        """An engine has finished a request that it answered: that is its pace."""
        self._ends[name].append(now)

    def full(self, decode: str) -> bool:
        """Whether a leg may have to wait for room on a decode engine."""
        slots = self._ways.slots(decode)
        return self._ways.full(decode) or (0 < slots < self._bound[decode])
