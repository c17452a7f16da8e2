"""Outputs of legs that have no flight: of nudges, of what was aborted, of an earlier controller's. Pure."""

from __future__ import annotations

from vdisagg.control import wire
from vdisagg.control.actions import Action, Send
from vdisagg.control.flight import LegIds
from vdisagg.control.legs import LegBook
from vdisagg.control.release import Releases
from vdisagg.control.unheard import Unheard


class Strays:
    """Gives each to those who know of it."""

    def __init__(self, ids: LegIds, releases: Releases, legs: LegBook, unheard: Unheard) -> None:
        self._ids = ids
        self._releases = releases
        self._legs = legs
        self._unheard = unheard

    def take(self, instance: str, output: wire.Output, *, now: float) -> list[Action]:
        """A nudge's, say. What an earlier controller has begun is stopped."""
        if self._releases.is_nudge(instance, output):
            again = self._releases.stepped(instance, now=now)
            if again:
                return again
            self._legs.stepped(instance)
            return self._unheard.stepped(instance, now=now)
        if self._unheard.expects(output.request_id):
            return self._unheard.heard(instance, output, now=now)
        if not self._ids.is_foreign(output.request_id):
            return self._releases.stray(instance, output, now=now)
        if output.finish_reason is None:
            return [Send(instance, wire.ABORT, wire.encode([output.request_id]))]
        if output.kv_transfer_params == wire.NIL:
            return []
        self._unheard.learn(instance, output.kv_transfer_params)
        return self._releases.release(
            (instance, ""), output.kv_transfer_params, leg=output.request_id, now=now
        )
