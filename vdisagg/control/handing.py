"""The end of a prefill leg: its handle goes to a decode leg, its token perhaps to the client. Pure."""

from __future__ import annotations

from vdisagg.control import early, wire
from vdisagg.control.actions import Action, Reply
from vdisagg.control.flight import PROBE, Flight, Stage
from vdisagg.control.flights import Counts, Flights
from vdisagg.control.handover import Handover
from vdisagg.control.ledger import Ledger
from vdisagg.control.legs import LegBook
from vdisagg.control.placing import Placing, Ways
from vdisagg.control.release import Releases
from vdisagg.control.unheard import Unheard


class Handing:
    """Takes the outputs of prefill legs."""

    def __init__(
        self,
        handover: Handover,
        flights: Flights,
        legs: LegBook,
        placing: Placing,
        ways: Ways,
        releases: Releases,
        unheard: Unheard,
        ledger: Ledger,
        counts: Counts,
    ) -> None:
        self._handover = handover
        self._flights = flights
        self._legs = legs
        self._placing = placing
        self._ways = ways
        self._releases = releases
        self._unheard = unheard
        self._ledger = ledger
        self._counts = counts

    def take(self, flight: Flight, output: wire.Output, *, now: float) -> list[Action]:
        """An output of a prefill leg; only the last one says anything."""
        if output.finish_reason is None:
            return []
        sampling = flight.asked_sampling
        handed = None
        if output.finish_reason in (wire.LENGTH, wire.STOP) and sampling is not None:
            handed = self._handover.decode(sampling, output)
        if handed is None:
            self._ledger.over(flight.leg)
            reason = f"{flight.prefill} ended the prefill leg without a handle"
            avoid = self._placing.all_with(flight.prefill)
            return self._flights.fail(flight, reason, now=now, output=output, avoid=avoid)
        self._unheard.learn(flight.prefill, output.kv_transfer_params)
        self._releases.caught_up(flight.prefill, flight.leg)
        if not self._still_linked(flight):
            reason = f"no working link from {flight.prefill} to a decode instance"
            release = self._releases.release(
                flight.link, output.kv_transfer_params, leg=flight.leg, now=now
            )
            return [*release, *self._flights.fail(flight, reason, now=now, output=output)]
        self._legs.leave(flight)
        flight.instants.note_prefill(flight.prefill, output, now=now)
        flight.handle = output.kv_transfer_params
        flight.expired_before = self._ways.expired(flight.prefill)
        flight.token = output.new_token_ids[0] if output.new_token_ids else None
        flight.prefill_stats = output.prefill_stats
        decode = self._legs.begin(flight, Stage.DECODE, flight.decode, handed, now=now)
        return [decode, *self._tell_ahead(flight, output)]

    def _still_linked(self, flight: Flight) -> bool:
        """Whether the flight has a decode instance to go to; another one than planned if need be."""
        if flight.api == PROBE or flight.link in self._ways.routable():
            return True
        decode = self._placing.another_decode(flight.prefill)
        if decode:
            flight.decode = decode
            self._legs.bind(flight, decode)
        return bool(decode)

    def _tell_ahead(self, flight: Flight, output: wire.Output) -> list[Action]:
        """Send prefill's token on at once, where that is safe."""
        token, sampling = flight.token, flight.asked_sampling
        if flight.api == PROBE or token is None or sampling is None:
            return []
        if not early.eligible(flight.asked, sampling) or early.ends_answer(token, sampling):
            return []
        first = wire.Output(flight.front_id, [token])
        if not flight.sent:
            first.events, first.prefill_stats = output.events, output.prefill_stats
        flight.told = flight.sent = True
        flight.emitted.append(token)
        self._counts.output_tokens += 1
        return [Reply(flight.api, [first], 0.0)]
