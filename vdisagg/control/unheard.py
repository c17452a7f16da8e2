"""Prefill legs whose handles may have been lost on their way: with a connection, or with the controller before
this one. Pure.

Nobody else knows of such a handle, so its blocks would be kept until the lease ends. Each leg is aborted where
it may still be worked on, as soon as that engine is connected again; and the engine takes a step. Engines'
outputs keep their order: what has not come by the end of that step has been lost, or was never made. Then
the blocks are given back with a handle that is made out of another one of the same prefill engine's.

A handle that nobody keeps blocks for any more may be given back as well: prefill notes that in its log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from vdisagg.control import wire
from vdisagg.control.actions import Action, Send, Tainted
from vdisagg.control.handover import Handover
from vdisagg.control.ledger import Ledger, OpenLeg
from vdisagg.control.release import Releases


class Unheard:
    """Those legs, and one handle of each prefill engine as a sample."""

    def __init__(self, handover: Handover, releases: Releases, ledger: Ledger) -> None:
        self._handover = handover
        self._releases = releases
        self._ledger = ledger
        self._samples: dict[str, msgspec.Raw] = {}
        self._legs: dict[str, OpenLeg] = {}
        """By the id under which the leg may be heard of; the instance is empty where nothing more will be."""
        self._asked: set[str] = set()
        """Engines that have been told to stop them."""
        self._passed_over: set[str] = set()
        """Decode engines that were given up before they read a handle, which was given back without them."""

    def inherit(
        self, legs: Iterable[OpenLeg], samples: Mapping[str, bytes], alive: Collection[str]
    ) -> None:
        """What an earlier controller has left open. `alive`: engines that have outlived it, as far as is
        known; `back` or `buried` will be said of each."""
        self._samples = {name: msgspec.Raw(sample) for name, sample in samples.items()}
        for leg in legs:
            if leg.prefill not in alive:
                self._ledger.over(leg.leg)
                continue
            at = leg.at if leg.at in alive else ""
            self._legs[leg.under] = msgspec.structs.replace(leg, at=at)

    def learn(self, prefill: str, handle: msgspec.Raw) -> None:
        """A handle has come from an engine."""
        if prefill not in self._samples:
            self._samples[prefill] = handle
            self._ledger.sample(prefill, bytes(handle))

    def add(self, leg: str, prefill: str) -> None:
        """A leg of our own, which an engine was at when its connection broke."""
        self._legs[leg] = OpenLeg(leg, prefill, prefill, leg)

    def expects(self, under: str) -> bool:
        """Whether this is such a leg."""
        return under in self._legs

    def heard(self, instance: str, output: wire.Output, *, now: float) -> list[Action]:
        """An engine has said something of a leg that is expected."""
        under, handle = output.request_id, output.kv_transfer_params
        leg = self._legs[under]
        stop = Send(instance, wire.ABORT, wire.encode([under]))
        if leg.under != leg.leg:  # decode has read it
            del self._legs[under]
            self._ledger.over(leg.leg)
            return [stop] if output.finish_reason is None else []
        if output.finish_reason is None:
            return [stop]
        del self._legs[under]
        if handle == wire.NIL:
            self._ledger.over(leg.leg)
            return []
        self.learn(instance, handle)
        return self._releases.release((instance, ""), handle, leg=leg.leg, now=now)

    def back(self, name: str) -> list[Action]:
        """An engine is connected again. It has to be nudged after this."""
        actions: list[Action] = []
        if under := [leg.under for leg in self._legs.values() if leg.at == name]:
            self._asked.add(name)
            actions.append(Send(name, wire.ABORT, wire.encode(under)))
        if name in self._passed_over:  # what it was told may have come late, and been read too late
            self._passed_over.discard(name)
            actions.append(Tainted(name))
        return actions

    def stepped(self, name: str, *, now: float) -> list[Action]:
        """An engine has taken the step that it was nudged for."""
        if name not in self._asked:
            return []
        self._asked.discard(name)
        return self._no_more_of(name, stepped=True, now=now)

    def lost(self, name: str) -> None:
        """An engine can't be reached: it may not have heard what it was told."""
        self._asked.discard(name)

    def buried(self, name: str, *, now: float) -> list[Action]:
        """An engine is given up. Should it be back all the same, it still has what it keeps."""
        self._asked.discard(name)
        if any(leg.at == name and leg.prefill != name for leg in self._legs.values()):
            self._passed_over.add(name)
        return self._no_more_of(name, now=now)

    def renewed(self, name: str) -> None:
        """Another engine core has taken the place: nobody keeps anything of that one's."""
        self._asked.discard(name)
        self._passed_over.discard(name)
        self._samples.pop(name, None)
        self._legs = {k: leg for k, leg in self._legs.items() if leg.prefill != name}

    def tick(self, *, now: float) -> list[Action]:
        """Give back what could not be before, for want of a sample."""
        return self._no_more_of("", now=now) if self._legs else []

    def _no_more_of(self, name: str, *, now: float, stepped: bool = False) -> list[Action]:
        """Nothing more will be heard of the legs at an engine; of prefill's own, if it has `stepped`."""
        actions: list[Action] = []
        legs = [one for one in self._legs.values() if one.at == name]
        for leg in [one for one in legs if stepped or one.prefill != name]:
            leg.at = ""
            sample = self._samples.get(leg.prefill)
            if sample is not None:
                del self._legs[leg.under]
                handle = self._handover.stand_in(sample, leg.leg)
                link = (leg.prefill, "")
                actions += self._releases.release(link, handle, leg=leg.leg, now=now)
        return actions
