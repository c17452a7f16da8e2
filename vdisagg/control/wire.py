"""vLLM's EngineCore messages, mirrored by position, as far as the controller looks into them.

vLLM encodes these structures as msgpack arrays, so the order of the fields *is* the protocol. (Its
structs say omit_defaults, which msgspec does not apply to arrays: every field is on the wire.) The
order belongs to the vLLM version: tests/real/test_wire_contract.py holds every position against the
installed vLLM, and `check_version` refuses versions that nobody has compared. What the controller only
passes on is `Raw`: decoded never, copied once. Of an output that is `Part`: there are many of them, nearly
all parts are nil, and a `Raw` costs an object each time where None costs nothing.

Tensors of a message travel in extra frames behind the first one and are referred to by index, so the
frames of a message must stay together and in order.

Source: vllm/v1/engine/__init__.py and vllm/v1/engine/core.py of the versions in KNOWN_VERSIONS.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from vdisagg.errors import ProtocolError
from vdisagg.plan.versions import KNOWN_VERSIONS as KNOWN_VERSIONS
from vdisagg.plan.versions import is_known

ADD: Final = b"\x00"
ABORT: Final = b"\x01"
UTILITY: Final = b"\x03"
ENGINE_CORE_DEAD: Final = b"ENGINE_CORE_DEAD"
IDENTITY: Final = (0).to_bytes(2, "little")
"""An engine's ZeroMQ identity: its data-parallel index, two bytes little-endian."""

STOP, LENGTH, ABORTED, ERROR, REPETITION = range(5)
"""Finish reasons, as integers on the wire."""

NIL: Final = msgspec.Raw(b"\xc0")


Part = Any
"""Passed on as plain values: they are encoded again to the same bytes."""


class AddRequest(msgspec.Struct, array_like=True, gc=False):
    """EngineCoreRequest."""

    request_id: str
    prompt_token_ids: msgspec.Raw
    mm_features: msgspec.Raw
    sampling_params: dict[str, Any] | None
    pooling_params: msgspec.Raw
    arrival_time: float
    lora_request: msgspec.Raw
    cache_salt: str | None
    data_parallel_rank: int | None
    prompt_embeds: msgspec.Raw = NIL
    prompt_is_token_ids: msgspec.Raw = NIL
    client_index: int = 0
    current_wave: int = 0
    priority: int = 0
    trace_headers: msgspec.Raw = NIL
    resumable: bool = False
    external_req_id: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: msgspec.Raw = NIL
    abort_immediately: bool = False
    session_id: str | None = None
    kv_hints: msgspec.Raw = NIL


class AddedId(msgspec.Struct, array_like=True, gc=False):
    """The head of an EngineCoreRequest: enough to refuse one whose rest can't be read."""

    request_id: str


QUEUED, SCHEDULED = 1, 2
"""Types of an engine's events."""


class EngineEvent(msgspec.Struct, gc=False):
    """EngineCoreEvent, a map on the wire. `timestamp`: seconds, of that engine's clock alone."""

    type: int
    timestamp: float


class Output(msgspec.Struct, array_like=True, gc=False):
    """EngineCoreOutput."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: msgspec.Raw = NIL
    new_prompt_logprobs_tensors: Part = None
    pooling_output: Part = None
    finish_reason: int | None = None
    stop_reason: Part = None
    events: msgspec.Raw = NIL
    kv_transfer_params: msgspec.Raw = NIL
    ec_transfer_params: Part = None
    trace_headers: Part = None
    prefill_stats: msgspec.Raw = NIL
    routed_experts: Part = None
    num_nans_in_logits: int = 0
    mm_cache_miss_hashes: Part = None
    new_sampling_mask: Part = None
    spec_decode_metrics: Part = None
    prompt_token_id_logprobs: Part = None


class ConnectorStats(msgspec.Struct):
    """What NIXL reports of its transfers since the last report; each list has one entry an event."""

    bytes_transferred: list[float] = []
    num_failed_transfers: list[float] = []
    num_failed_notifications: list[float] = []
    num_failed_handshakes: list[float] = []
    num_kv_expired_reqs: list[float] = []
    num_notifications_after_expiry: list[float] = []


class SchedulerStats(msgspec.Struct):
    """SchedulerStats, a map on the wire; keys that we don't read are skipped."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    kv_connector_stats: msgspec.Raw = NIL


class UtilityOutput(msgspec.Struct, array_like=True, gc=False):
    """The answer to a utility call; `result` is [type information, value]."""

    call_id: int
    failure_message: str | None = None
    result: msgspec.Raw = NIL


class Outputs(msgspec.Struct, array_like=True, gc=False):
    """EngineCoreOutputs: what one engine step (or one utility call) brought."""

    engine_index: int = 0
    outputs: list[Output] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    finished_requests: msgspec.Raw = NIL
    wave_complete: int | None = None
    start_wave: int | None = None
    weight_version: str | None = None


class Ready(msgspec.Struct):
    """The ready payload, a map on the wire, as far as we read it."""

    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    vllm_version: str
    max_num_seqs: int = 0
    """Requests that run at once; 0: not known."""


class Greeting(msgspec.Struct):
    """HELLO and READY on the handshake socket."""

    status: str
    local: bool = False
    headless: bool = True


class Addresses(msgspec.Struct):
    """Where an engine sends and receives: one input/output pair per API server."""

    inputs: list[str]
    outputs: list[str]


class Welcome(msgspec.Struct):
    """The answer to HELLO."""

    addresses: Addresses
    parallel_config: dict[str, Any] = {}


encode = msgspec.msgpack.Encoder().encode

Message = TypeVar("Message")


def _decoder(kind: type[Message], what: str) -> Callable[[bytes], Message]:
    """A decoder that raises ProtocolError, naming `what` it was given."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def translated(payload: bytes) -> Message:
        try:
            return decode(payload)
        except (msgspec.DecodeError, RecursionError) as exc:
            known = ", ".join(KNOWN_VERSIONS)
            raise ProtocolError(f"{what} is not what vLLM {known} sends: {exc}") from exc

    return translated


# From the front end: the payloads of ADD, ABORT (request ids) and UTILITY (client index, call id,
# method, arguments), and its answer to our HELLO.
decode_add = _decoder(AddRequest, "an ADD request")
decode_added_id = _decoder(AddedId, "an ADD request")
decode_ids = _decoder(list[str], "an ABORT request")
decode_utility = _decoder(tuple[int, int, str, msgspec.Raw], "a UTILITY request")
decode_welcome = _decoder(Welcome, "the front end's answer to HELLO")

# From an engine: what its PUSH socket sends (except ENGINE_CORE_DEAD), the ready payload, HELLO or
# READY, and a utility call's result as (type information, value). The type information is for vLLM's
# insecure serialisation.
decode_outputs = _decoder(Outputs, "an outputs message")
decode_ready = _decoder(Ready, "a ready payload")
decode_greeting = _decoder(Greeting, "a handshake")
decode_events = _decoder(list[EngineEvent], "an output's events")
decode_result = _decoder(tuple[Any, Any], "a utility call's result")

decode_value: Callable[[bytes], Any] = _decoder(object, "a value")
"""A `Raw` field as plain Python values."""

_decode_connector_stats = msgspec.msgpack.Decoder(ConnectorStats).decode


def connector_stats(stats: SchedulerStats) -> ConnectorStats | None:
    """The NIXL statistics inside scheduler statistics; None where there are none."""
    if stats.kv_connector_stats == NIL:
        return None
    try:
        return _decode_connector_stats(stats.kv_connector_stats)
    except msgspec.DecodeError:
        return None  # another connector's statistics: nothing that we count


ARRAY: Final = 3
"""The msgpack extension in which vLLM sends the bytes of small arrays."""

_ITEMS: Final = {
    f"<{kind}{size}": f"<{code}"
    for kind, codes in (("i", {2: "h", 4: "i", 8: "q"}), ("f", {2: "e", 4: "f", 8: "d"}))
    for size, code in codes.items()
}
"""NumPy's names of item types, and struct's."""


def top_logprobs(value: msgspec.Raw, frames: Sequence[bytes]) -> list[dict[int, float]]:
    """An output's `new_logprobs`: for each of its tokens, log probabilities by token id, the sampled
    token's and the likeliest ones'. Empty where there are none, or where they can't be read.

    LogprobsLists of vLLM: two arrays with a row a token, ids and log probabilities, and more that we
    don't need. `frames`: those behind the message, where large arrays are.
    """
    if value == NIL:
        return []
    try:
        ids, logprobs = (_rows(part, frames) for part in decode_value(value)[:2])
        return [
            dict(zip(map(int, row), values, strict=True))
            for row, values in zip(ids, logprobs, strict=True)
        ]
    except (ProtocolError, TypeError, ValueError, LookupError, struct.error):
        return []  # another version's form: a proof then has to do without near ties


def _rows(array: Any, frames: Sequence[bytes]) -> list[tuple[float, ...]]:
    """A two-dimensional array as vLLM encodes it: item type, shape, and bytes or a frame's index."""
    kind, (count, width), data = array
    inline = isinstance(data, msgspec.msgpack.Ext)
    item = struct.Struct(_ITEMS[kind][0] + width * _ITEMS[kind][1])
    # Frame 0 would be the message itself.
    rows = list(item.iter_unpack(data.data if inline else frames[data - 1]))
    if len(rows) != count:
        raise ValueError(f"{len(rows)} rows, where {count} are announced")
    return rows


def raw(value: object) -> msgspec.Raw:
    """A plain value as a `Raw` field."""
    return msgspec.Raw(encode(value))


def check_version(version: str) -> None:
    """Raise ProtocolError unless this vLLM's messages have been compared with ours.

    Local parts (`0.32.0+cpu`) don't change the protocol.
    """
    if not is_known(version):
        raise ProtocolError(
            f"vLLM {version} is not known to this vdisagg; it speaks the engine protocol of "
            f"{', '.join(KNOWN_VERSIONS)}. Install one of those on the node"
        )
