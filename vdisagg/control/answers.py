"""The first and the last output of a leg that answers: whether it is believed, and what follows. Pure.

With its first output a decode leg has read its handle. With greedy sampling its token has to be prefill's.
"""

from __future__ import annotations

from collections.abc import Sequence

from vdisagg.control import canary, wire
from vdisagg.control.actions import Action, Beat, Miss, Note, Tainted
from vdisagg.control.flight import PROBE, Flight, Stage
from vdisagg.control.flights import Counts, Flights, shown
from vdisagg.control.ledger import Ledger
from vdisagg.control.legs import LegBook
from vdisagg.control.placing import Placing, Way, Ways
from vdisagg.control.recent import Recent


class Answers:
    """Takes those outputs. `lease_s`: how long prefill keeps what a handle stands for."""

    def __init__(
        self,
        flights: Flights,
        legs: LegBook,
        placing: Placing,
        ways: Ways,
        ledger: Ledger,
        counts: Counts,
        recent: Recent,
        *,
        lease_s: float,
    ) -> None:
        self._flights = flights
        self._legs = legs
        self._placing = placing
        self._ways = ways
        self._ledger = ledger
        self._counts = counts
        self._recent = recent
        self._lease_s = lease_s

    def take(self, flight: Flight, output: wire.Output, *, now: float) -> tuple[list[Action], bool]:
        """A first or last output of an answering leg; whether it is to be passed on."""
        actions: list[Action] = []
        if flight.unread:
            self._ledger.over(flight.source)
        if output.finish_reason in (wire.ERROR, wire.ABORTED):  # nobody but the front end aborts
            return self._ended_badly(flight, output, now=now), False
        if flight.unread:
            if self._is_late(flight, now=now):
                return self._read_too_late(flight, output, now=now), False
            # Decode counts transferred KV as cached; what was cached is prefill's to say.
            output.prefill_stats = flight.prefill_stats
            if flight.compare and flight.token is not None and output.new_token_ids:
                flight.matched = flight.token == output.new_token_ids[0]
            if flight.api != PROBE:
                latency = now - flight.started
                actions.append(Beat(flight.link, latency, False, flight.matched))
                if flight.matched is False:
                    return [*actions, *self._recompute(flight, output, now=now)], False
        flight.instants.note_answer(output, now=now)
        if flight.sent:
            output.events = output.prefill_stats = wire.NIL  # the client has had them
        if flight.told and not flight.begun:
            del output.new_token_ids[0]
        flight.begun = True
        output.kv_transfer_params, output.ec_transfer_params = wire.NIL, None
        if output.finish_reason is None:
            return actions, True
        return [*actions, *self._finish(flight, output, now=now)], flight.api != PROBE

    def _is_late(self, flight: Flight, *, now: float) -> bool:
        """Whether decode may have read what prefill had given to others by then."""
        if now - flight.leg_started <= self._lease_s:
            return False
        return self._ways.expired(flight.prefill) > flight.expired_before

    def _read_too_late(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """Nothing of it is believed, and nothing that lies in decode's cache of it is read again."""
        reason = f"the lease of its handle on {flight.prefill} ran out"
        tainted = Tainted(flight.decode)
        miss = Miss(flight.link, flight.api == PROBE, reason)
        over = output if output.finish_reason is not None else None
        flight.salt = f"anew-{flight.leg}"
        failed = self._flights.fail(flight, reason, now=now, output=over)
        return [tainted, *failed] if flight.api == PROBE else [tainted, miss, *failed]

    def _ended_badly(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        leg = flight.stage.name.lower()
        what = f"{flight.at} ended the {leg} leg with an error"
        note = Note(flight.at, f"request {shown(flight.front_id)}: {what}")
        if flight.stage is not Stage.DECODE:
            avoid = self._placing.all_with(flight.at)
            return [note, *self._flights.fail(flight, what, now=now, output=output, avoid=avoid)]
        link = flight.link
        miss = [] if flight.api == PROBE else [Miss(link, False, what)]
        return [
            note,
            *miss,
            *self._flights.fail(flight, what, now=now, output=output, avoid={link}),
        ]

    def _recompute(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """Decode's first token is not prefill's, so it may not have read what prefill wrote. It has
        the prompt computed anew by itself, out of no cache: what it has read is in its own."""
        link = flight.link
        actions = self._legs.drop(flight, now=now, over=output.finish_reason is not None)
        flight.salt = f"anew-{flight.leg}"
        flight.asked, flight.asked_sampling = self._flights.left(flight)
        what = f"request {shown(flight.front_id)}: decode's first token is not prefill's; computed anew"
        way = Way(Stage.WHOLE, flight.at, "", flight.decode)
        return [Note("→".join(link), what), *actions, self._flights.take(flight, way, now=now)]

    def _finish(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """An answering leg has come to its end."""
        if flight.api != PROBE:
            self._recent.add(flight, now=now)
            self._placing.finished(flight.at, now=now)
            self._flights.end(flight)
            self._counts.finished += 1
            return []
        tokens = [*flight.emitted, *output.new_token_ids]
        if flight.proof is not None and flight.stage is Stage.DECODE:
            flight.latency_s, flight.over_link = now - flight.started, tokens
            self._legs.leave(flight)
            flight.emitted = []
            flight.asked, flight.asked_sampling = flight.proof, flight.proof.sampling_params
            alone = flight.asked_sampling
            return [self._legs.begin(flight, Stage.WHOLE, flight.decode, alone, now=now)]
        self._flights.end(flight)  # a probe is over when nothing of it is left, and only then
        if flight.proof is None:
            return [Beat(flight.link, now - flight.started, True, flight.matched)]
        beat = self._proved(flight, tokens)
        return [beat] if beat.matched else [Tainted(flight.decode), beat]

    @staticmethod
    def _proved(flight: Flight, alone: Sequence[int]) -> Beat:
        what = canary.verdict(flight.over_link, alone, flight.alone_top)
        if not what and flight.token is not None:
            ahead = canary.verdict([flight.token], alone[:1], flight.alone_top[:1])
            what = f"prefill's own token: {ahead}" if ahead else ""
        return Beat(flight.link, flight.latency_s, True, not what, proof=True, reason=what)
