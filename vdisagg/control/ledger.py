"""Prefill legs whose handles nobody is known to have read yet, told as it happens.

Such a leg's blocks stay where they are until its handle has been read or given back, or its lease has
ended. A controller that is killed takes handles with it: what prefill had sent and it had not taken in, what
it had passed on and decode had not got. The next one has to know of the legs.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

BEGUN: Final = "begun"
"""Notes of the journal begin with one of these; what follows stands at the methods of Ledger."""

HANDED: Final = "handed"
OVER: Final = "over"
SAMPLE: Final = "sample"
GONE: Final = "gone"

Note = list[Any]
"""One of these words, names and ids as str, a handle as bytes."""


class OpenLeg(msgspec.Struct, array_like=True):
    """A prefill leg whose blocks may still be kept for somebody."""

    leg: str
    prefill: str
    """The instance that keeps them."""
    at: str
    """The instance that may be at work on it: prefill's, or the decode engine that is to read them."""
    under: str
    """The id of the leg there."""


class Ledger(Protocol):
    """Is told what becomes of handles, before anything is sent that depends on it."""

    def begun(self, leg: str, prefill: str) -> None:
        """A prefill leg is about to be sent."""

    def handed(self, leg: str, under: str, at: str) -> None:
        """Its handle is about to be given to the decode leg `under` on the instance `at`."""

    def over(self, leg: str) -> None:
        """Its handle has been read or given back, or there was none. May be told twice."""

    def sample(self, prefill: str, handle: bytes) -> None:
        """A first handle of this engine's, to make others from."""

    def gone(self, prefill: str) -> None:
        """The engine has ended, and its blocks with it; its sample is worth nothing any more."""


class NoLedger:
    """Keeps nothing."""

    def begun(self, leg: str, prefill: str) -> None:
        """See Ledger."""

    def handed(self, leg: str, under: str, at: str) -> None:
        """See Ledger."""

    def over(self, leg: str) -> None:
        """See Ledger."""

    def sample(self, prefill: str, handle: bytes) -> None:
        """See Ledger."""

    def gone(self, prefill: str) -> None:
        """See Ledger."""


class Open:
    """What notes leave open."""

    def __init__(self, legs: list[OpenLeg], samples: dict[str, bytes]) -> None:
        self.legs = {one.leg: one for one in legs}
        self.samples = dict(samples)

    def take(self, note: Note) -> None:
        """One note more. Raises ValueError for one that is not whole."""
        what, *rest = note
        if what == BEGUN:
            leg, prefill = rest
            self.legs[leg] = OpenLeg(leg, prefill, prefill, leg)
        elif what == HANDED:
            leg, under, at = rest
            if (one := self.legs.get(leg)) is not None:
                one.at, one.under = at, under
        elif what == OVER:
            for leg in rest:
                self.legs.pop(leg, None)
        elif what == SAMPLE:
            prefill, handle = rest
            self.samples[prefill] = handle
        elif what == GONE:
            (prefill,) = rest
            self.samples.pop(prefill, None)
            self.legs = {k: one for k, one in self.legs.items() if one.prefill != prefill}

    def copy(self) -> list[OpenLeg]:
        """The open legs, which later notes don't change."""
        return [msgspec.structs.replace(one) for one in self.legs.values()]
