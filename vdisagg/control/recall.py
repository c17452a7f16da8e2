"""Pure: what a journal's entries leave to be done: requests that have not ended, calls without an answer,
handles that nobody is known to have read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.entries import INPUT, LEGS, LIVE, OUTPUT, Entry
from vdisagg.control.ledger import Note, Open, OpenLeg
from vdisagg.errors import ProtocolError


class SentOutput(msgspec.Struct, array_like=True, gc=False):
    """The beginning of wire.Output: what is sent is read back at twice the speed."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: wire.Part
    new_prompt_logprobs_tensors: wire.Part
    pooling_output: wire.Part
    finish_reason: int | None


class SentOutputs(msgspec.Struct, array_like=True, gc=False):
    """The beginning of wire.Outputs."""

    engine_index: int
    outputs: list[SentOutput]
    scheduler_stats: msgspec.Raw
    timestamp: float
    utility_output: wire.UtilityOutput | None


_decode_sent = msgspec.msgpack.Decoder(SentOutputs).decode


class RecalledRequest(msgspec.Struct):
    """A user's request that has not ended."""

    api: int
    request_id: str
    """The front end's id."""
    payload: bytes
    """Its ADD, as it came."""
    frames: list[bytes] = []
    emitted: list[int] = []
    """The tokens that have been sent to the API server, in order."""
    begun: bool = False
    """Whether anything of its answer has been sent."""


class Recalled(msgspec.Struct, frozen=True):
    """What is left to be done, and how far the counts are."""

    requests: list[RecalledRequest] = []
    """In the order in which they came."""
    calls: list[tuple[int, bytes]] = []
    """UTILITY messages without an answer, as (API server, payload), in order."""
    received: dict[int, int] = {}
    """Messages that have come, by API server."""
    sent: dict[int, int] = {}
    """Messages that have gone, by API server: the number of the last one."""
    legs: list[OpenLeg] = []
    """Prefill legs whose handles nobody is known to have read."""
    samples: dict[str, bytes] = {}
    """A handle of each prefill engine that has given one."""


_decode_notes = msgspec.msgpack.Decoder(list[Note]).decode

decode: Final[Callable[[bytes], Recalled]] = msgspec.msgpack.Decoder(Recalled).decode
"""Raises msgspec.DecodeError."""


class Recall:
    """Takes entries in order, and knows at each moment what they leave to be done."""

    def __init__(self) -> None:
        self.received: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self._requests: dict[tuple[int, str], RecalledRequest] = {}
        self._calls: dict[tuple[int, int], bytes] = {}
        self._open = Open([], {})

    def take(self, entry: Entry) -> None:
        """One entry more. What can't be read in it counts, and says nothing else."""
        try:
            if entry.what == OUTPUT:
                self.sent[entry.api] = entry.number
                self._output(entry.api, _decode_sent(entry.parts[0]))
            elif entry.what == INPUT:
                self.received[entry.api] = entry.number
                kind, payload, *frames = entry.parts
                self._input(entry.api, kind, payload, frames)
            elif entry.what == LEGS:
                for note in _decode_notes(entry.parts[0]):
                    self._open.take(note)
            elif entry.what == LIVE:
                self._begin(decode(entry.parts[0]))
        except (ProtocolError, ValueError):  # msgspec.DecodeError is one
            pass  # the controller could not read it either, and answered nothing or an error

    def recalled(self) -> Recalled:
        """As it stands now."""
        return Recalled(
            requests=[
                msgspec.structs.replace(
                    one, emitted=[*one.emitted]
                )  # later entries don't change it
                for one in self._requests.values()
            ],
            calls=[(api, payload) for (api, _), payload in self._calls.items()],
            received=dict(self.received),
            sent=dict(self.sent),
            legs=self._open.copy(),
            samples=dict(self._open.samples),
        )

    def _begin(self, live: Recalled) -> None:
        self.received, self.sent = dict(live.received), dict(live.sent)
        self._requests = {(one.api, one.request_id): one for one in live.requests}
        self._calls = {(api, wire.decode_utility(call)[1]): call for api, call in live.calls}
        self._open = Open(live.legs, live.samples)

    def _input(self, api: int, kind: bytes, payload: bytes, frames: list[bytes]) -> None:
        if kind == wire.ADD:
            request_id = wire.decode_added_id(payload).request_id
            # A second one of the same id is refused, and that refusal ends the first one, too, in
            # the eyes of the front end.
            one = RecalledRequest(api, request_id, payload, frames, emitted=[])
            self._requests.setdefault((api, request_id), one)
        elif kind == wire.ABORT:
            for request_id in wire.decode_ids(payload):
                self._requests.pop((api, request_id), None)
        elif kind == wire.UTILITY:
            self._calls[api, wire.decode_utility(payload)[1]] = payload

    def _output(self, api: int, message: SentOutputs) -> None:
        for output in message.outputs:
            key = (api, output.request_id)
            if output.finish_reason is not None:
                self._requests.pop(key, None)
            elif (one := self._requests.get(key)) is not None:
                one.emitted += output.new_token_ids  # the list is this Recall's alone
                one.begun = True
        if message.utility_output is not None:
            self._calls.pop((api, message.utility_output.call_id), None)


def recall(entries: Iterable[Entry]) -> Recalled:
    """What is left to be done after `entries`."""
    recalling = Recall()
    for entry in entries:
        recalling.take(entry)
    return recalling.recalled()
