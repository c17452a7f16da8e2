"""vLLM's messages: read, written, and refused by name when they are something else."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fakes.messages import request
from vdisagg.control import wire
from vdisagg.errors import ProtocolError

DECODERS: dict[str, Callable[[bytes], Any]] = {
    name: function for name, function in vars(wire).items() if name.startswith("decode_")
}


def test_an_add_request_survives_decoding_and_encoding_byte_for_byte() -> None:
    everything = [
        "cmpl-1",
        [1, 2, 3],
        [["image", {"a": 1}]],
        {"temperature": 0.5, "extra_args": {"a": [1]}},
        None,
        12.5,
        ["lora", 1, "/path"],
        "salt",
        3,
        ["tensor", 0],
        [True, False],
        1,
        2,
        3,
        {"traceparent": "x"},
        True,
        "external",
        False,
        {"k": 1},
        True,
        "session",
        [1],
    ]
    payload = wire.encode(everything)
    assert wire.encode(wire.decode_add(payload)) == payload
    assert len(everything) == len(wire.AddRequest.__struct_fields__)


def test_fields_that_a_later_patch_release_adds_at_the_end_are_skipped() -> None:
    payload = wire.encode([*wire.decode_value(msgspec.Raw(wire.encode(request("a")))), "new"])
    assert wire.decode_add(payload) == request("a")


def test_outputs_survive_decoding_and_encoding() -> None:
    output = wire.Output(
        "a",
        [5, 6],
        new_logprobs=wire.raw([[1], [0.5]]),
        finish_reason=wire.STOP,
        stop_reason="x",
        prefill_stats=wire.raw({"num_cached_tokens": 3}),
    )
    message = wire.Outputs(
        engine_index=1,
        outputs=[output],
        scheduler_stats=wire.SchedulerStats(1, 2, 0.5),
        timestamp=3.5,
        utility_output=wire.UtilityOutput(4, None, wire.raw((None, ["generate"]))),
        finished_requests=wire.raw(["a"]),
        wave_complete=1,
        start_wave=2,
        weight_version="v1",
    )
    payload = wire.encode(message)
    assert wire.decode_outputs(payload) == message
    assert wire.encode(wire.decode_outputs(payload)) == payload


def test_scheduler_statistics_that_we_do_not_read_are_skipped() -> None:
    stats = {"step_counter": 3, "num_running_reqs": 2, "kv_cache_usage": 0.25, "spec": [1, {}]}
    message = wire.decode_outputs(wire.encode([0, [], stats, 1.0]))
    assert message.scheduler_stats == wire.SchedulerStats(2, 0, 0.25)


def test_the_handshakes_messages_are_read() -> None:
    hello = {"status": "HELLO", "local": False, "headless": True, "more": 1}
    assert wire.decode_greeting(wire.encode(hello)) == wire.Greeting("HELLO", False, True)
    welcome = {"addresses": {"inputs": ["a"], "outputs": ["b"], "more": None}}
    read = wire.decode_welcome(wire.encode(welcome))
    assert read.addresses == wire.Addresses(["a"], ["b"])
    ready: dict[str, Any] = {
        "max_model_len": 9,
        "num_gpu_blocks": 8,
        "block_size": 7,
        "vllm_version": "0.32.0",
    }
    assert wire.decode_ready(wire.encode({**ready, "more": 1})) == wire.Ready(**ready)
    assert wire.decode_ready(wire.encode({**ready, "max_num_seqs": 6})).max_num_seqs == 6
    assert wire.decode_utility(wire.encode((0, 7, "sleep", (1,)))) == (0, 7, "sleep", wire.raw([1]))
    assert wire.decode_ids(wire.encode(["a", "b"])) == ["a", "b"]
    assert wire.decode_result(wire.encode((None, [1]))) == (None, [1])
    assert wire.decode_added_id(wire.encode(["odd", 1, 2])).request_id == "odd"


JUNK = {
    "empty": b"",
    "no msgpack": b"\xc1",
    "cut short": wire.encode(["a", "b"])[:-1],
    "trailing": wire.encode(["a"]) + b"\x01",
    "no UTF-8": b"\x91\xa2\xff\xfe",
    "endless nesting": b"\x91" * 100_000,
    "no hashable key": b"\x81\x80\x01",
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("junk", JUNK)
def test_junk_is_a_protocol_error_that_says_what_was_expected(decoder: str, junk: str) -> None:
    with pytest.raises(ProtocolError, match=r"is not what vLLM 0\.32\.0 sends: "):
        DECODERS[decoder](JUNK[junk])


@pytest.mark.parametrize("decoder", sorted(set(DECODERS) - {"decode_value"}))
def test_another_type_is_a_protocol_error_too(decoder: str) -> None:
    with pytest.raises(ProtocolError):
        DECODERS[decoder](wire.encode(7))


def test_all_decoders_are_under_test() -> None:
    assert len(DECODERS) == 11
    assert all(inspect.isfunction(decoder) for decoder in DECODERS.values())


def array(kind: str, shape: list[int], data: bytes | int) -> list[object]:
    """An array as vLLM encodes it."""
    inline = msgspec.msgpack.Ext(wire.ARRAY, data) if isinstance(data, bytes) else data
    return [kind, shape, inline]


IDS = struct.pack("<6i", 7, 7, 9, 8, 8, 5)
LOGPROBS = struct.pack("<6f", -0.5, -0.5, -1.5, -0.25, -0.25, -2.0)
TOP = [{7: -0.5, 9: -1.5}, {8: -0.25, 5: -2.0}]


def test_log_probabilities_are_read_where_they_are_small() -> None:
    ids, logprobs = array("<i4", [2, 3], IDS), array("<f4", [2, 3], LOGPROBS)
    ranks = array("<i4", [2], struct.pack("<2i", 1, 1))
    assert wire.top_logprobs(wire.raw([ids, logprobs, ranks, None]), []) == TOP


def test_log_probabilities_are_read_where_they_are_in_frames_of_their_own() -> None:
    ids, logprobs = array("<i8", [2, 3], 2), array("<f4", [2, 3], 3)
    frames = [b"another's", struct.pack("<6q", 7, 7, 9, 8, 8, 5), LOGPROBS]
    assert wire.top_logprobs(wire.raw([ids, logprobs, [], None]), frames) == TOP


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        7,
        {"a": 1},
        [[1], [0.5]],
        [array("<i4", [2, 3], IDS), array("<f4", [3, 2], LOGPROBS)],
        [array("<i4", [2, 3], IDS), array("<f4", [1, 3], LOGPROBS)],
        [array("<i4", [2, 3], IDS), array("<f4", [2, 3], LOGPROBS[:-1])],
        [array("<i4", [2, 3], IDS), array(">f4", [2, 3], LOGPROBS)],
        [array("<i4", [6], IDS), array("<f4", [6], LOGPROBS)],
        [array("<i4", [2, 0], b""), array("<f4", [2, 0], b"")],
        [array("<i4", [2, 3], 1), array("<f4", [2, 3], 2)],
        [array("<i4", [2, 3], "data"), array("<f4", [2, 3], 2)],  # type: ignore[arg-type]
    ],
)
def test_log_probabilities_of_another_form_are_none(odd: object) -> None:
    assert wire.top_logprobs(wire.raw(odd), []) == []


def test_connector_statistics_count_events() -> None:
    moved = {"bytes_transferred": [10.0, 20.0], "num_failed_transfers": [1.0], "more": []}
    stats = wire.connector_stats(wire.SchedulerStats(kv_connector_stats=wire.raw(moved)))
    assert stats == wire.ConnectorStats([10.0, 20.0], num_failed_transfers=[1.0])


@pytest.mark.parametrize("other", [None, [1, 2], {"bytes_transferred": "many"}])
def test_another_connectors_statistics_are_none_of_ours(other: object) -> None:
    assert wire.connector_stats(wire.SchedulerStats(kv_connector_stats=wire.raw(other))) is None


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.0+cu130"])
def test_a_known_version_passes_whatever_it_was_built_for(version: str) -> None:
    wire.check_version(version)


@pytest.mark.parametrize("version", ["0.32.1", "0.33.0", "0.32.0rc1", "0.32", "", "dev+0.32.0"])
def test_an_unknown_version_is_refused_with_the_known_ones(version: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.check_version(version)
    assert f"vLLM {version} is not known" in str(caught.value)
    assert all(known in str(caught.value) for known in wire.KNOWN_VERSIONS)


def test_the_identity_is_the_index_in_two_little_endian_bytes() -> None:
    assert wire.IDENTITY == b"\x00\x00"
