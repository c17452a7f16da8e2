"""The states of an instance, as a table. An event that the table lacks raises and changes nothing.

    planned → launching → connected → ready ⇄ suspect → dead
                                      ready → draining → stopped

An engine that says HELLO again is a new generation of the same instance. One that was given up because
nothing was heard of it, or because its connections were gone, is taken back as it is when it returns:
whoever signals BACK has made sure that its process has not ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vdisagg.cluster.admin import InstanceState


class Signal(StrEnum):
    """What can happen to an instance."""

    LAUNCHED = "launched"
    HELLO = "hello"  # the engine core dialled the handshake socket
    READY = "ready"  # …has loaded, and connected its request and output sockets
    LOST = "lost"  # its connections are gone, or it says nothing where it should; it may come back
    BACK = "back"  # it is there again, the same engine
    DIED = "died"  # it said so, or its guard recorded the exit; or it has been suspect for too long
    DRAIN = "drain"
    DRAINED = "drained"


TRANSITIONS: Final[dict[tuple[InstanceState, Signal], InstanceState]] = {
    ("planned", Signal.LAUNCHED): "launching",
    ("launching", Signal.HELLO): "connected",
    ("launching", Signal.DIED): "dead",
    ("connected", Signal.HELLO): "connected",
    ("connected", Signal.READY): "ready",
    ("connected", Signal.LOST): "dead",
    ("connected", Signal.DIED): "dead",
    ("ready", Signal.HELLO): "connected",
    ("ready", Signal.LOST): "suspect",
    ("ready", Signal.DIED): "dead",
    ("ready", Signal.DRAIN): "draining",
    ("suspect", Signal.HELLO): "connected",
    ("suspect", Signal.BACK): "ready",
    ("suspect", Signal.DIED): "dead",
    ("draining", Signal.DRAINED): "stopped",
    ("draining", Signal.LOST): "dead",
    ("draining", Signal.DIED): "dead",
    ("dead", Signal.LAUNCHED): "launching",
    ("dead", Signal.HELLO): "connected",
    ("dead", Signal.BACK): "ready",
    ("stopped", Signal.DIED): "stopped",
}

SUSPECT_S: Final = 5.0
"""How long a suspect may take to come back: ZeroMQ reconnects within 0.1 s where the engine lives, so
this is generous."""


class IllegalSignalError(Exception):
    """A pair that is not in the table: a fault of the controller, never of the user."""


@dataclass(frozen=True)
class Life:
    """One instance's state; `handle` returns the next value and never changes this one."""

    state: InstanceState = "planned"
    since: float = 0.0
    generation: int = 0
    reason: str = ""

    def takes(self, signal: Signal) -> bool:
        """Whether `signal` has a meaning in this state."""
        return (self.state, signal) in TRANSITIONS

    def handle(self, signal: Signal, *, now: float, reason: str = "") -> Life:
        """Raises IllegalSignalError for a pair that is not in the table."""
        try:
            state = TRANSITIONS[self.state, signal]
        except KeyError:
            raise IllegalSignalError(f"{signal} in state {self.state}") from None
        started = signal is Signal.HELLO
        return Life(state, now, self.generation + started, reason)

    @property
    def routable(self) -> bool:
        """Whether users' requests may be sent to it."""
        return self.state == "ready"
