"""Emptying the prefix cache of a decode engine that has read a wrong KV cache. Pure.

What decode reads lies in its prefix cache afterwards, and answers later requests of the same beginning.
vLLM empties that cache only while nothing uses it, or when told to take running requests off first; it
computes these anew, from their prompts and the tokens that they have. Even that fails while a request
waits for a transfer. So it is asked for until it has been done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vdisagg.control import wire
from vdisagg.control.actions import Send

AGAIN_S: Final = 0.5
"""Between two tries."""

FIRST_CALL: Final = 1 << 30
"""Calls of the front end count from 1."""


@dataclass
class _Purge:
    call: int | None
    """The one under way."""
    due: float


class Purges:
    """Engines whose prefix cache has to go."""

    def __init__(self) -> None:
        self._calls = FIRST_CALL
        self._wanted: dict[str, _Purge] = {}

    def want(self, instance: str, *, now: float) -> list[Send]:
        """An engine has read what it should not have."""
        self.owe(instance, now=now)
        return self.tick(now=now)

    def owe(self, instance: str, *, now: float) -> None:
        """The same of an engine that is not connected yet; `tick` says when it is told."""
        self._wanted[instance] = _Purge(None, now)

    def wants(self, instance: str) -> bool:
        """Whether an engine's prefix cache is still to be emptied."""
        return instance in self._wanted

    def answered(self, instance: str, output: wire.UtilityOutput, *, now: float) -> bool:
        """Whether a utility call's answer was to one of ours."""
        if output.call_id < FIRST_CALL:
            return False
        purge = self._wanted.get(instance)
        if purge is not None and purge.call == output.call_id:
            if output.failure_message is None and wire.decode_result(output.result)[1] is not False:
                del self._wanted[instance]
            else:
                purge.call, purge.due = None, now + AGAIN_S
        return True

    def renewed(self, instance: str) -> None:
        """Another engine core has taken the place: it has read nothing."""
        self._wanted.pop(instance, None)

    def lost(self, instance: str, *, now: float) -> None:
        """An engine may not have heard it."""
        if instance in self._wanted:
            self._wanted[instance] = _Purge(None, now)

    def tick(self, *, now: float, ready: Callable[[str], bool] = lambda _: True) -> list[Send]:
        """What is due to be sent, to engines that are ready for it."""
        sends = []
        for instance, purge in self._wanted.items():
            if purge.call is None and purge.due <= now and ready(instance):
                self._calls += 1
                purge.call = self._calls
                call = (0, purge.call, "reset_prefix_cache", [True])
                sends.append(Send(instance, wire.UTILITY, wire.encode(call)))
        return sends
