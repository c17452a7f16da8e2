"""The wire mirror and the fakes, held against what a real engine and front end sent.

tests/data/frames-VERSION.json holds, per socket, the messages that the controller received; it is made
by tests/real/record_frames.py.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from fakes.cluster import free_ports
from fakes.engine import FakeEngine, KvStore
from fakes.front import FakeFront
from vdisagg.control import wire
from vdisagg.control.phases import queued_s

FILES = sorted((Path(__file__).parents[1] / "data").glob("frames-*.json"))
decode = msgspec.msgpack.decode
Messages = dict[str, list[list[bytes]]]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> Messages:
    def frames(message: list[str]) -> list[bytes]:
        return [base64.b64decode(frame) for frame in message]

    sockets = json.loads(request.param.read_text())
    return {socket: list(map(frames, messages)) for socket, messages in sockets.items()}


def front_end(recorded: Messages, kind: bytes) -> list[bytes]:
    return [message[1] for message in recorded["front end"] if message[0] == kind]


def outputs(recorded: Messages, instance: str) -> list[bytes]:
    return [message[0] for message in recorded[f"{instance} outputs"]]


def shape(value: Any) -> Any:
    """What a value is, without what it says; None stands for anything."""
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return None if value is None else type(value).__name__


def fits(fake: list[Any], real: list[Any]) -> bool:
    """Whether both have the same number of positions, and the same types where both have values."""
    return len(fake) == len(real) and all(
        a is None or b is None or shape(a) == shape(b) or [] in (a, b)
        for a, b in zip(fake, real, strict=True)
    )


def test_there_are_frames_of_every_known_version() -> None:
    assert {f.stem.removeprefix("frames-") for f in FILES} == set(wire.KNOWN_VERSIONS)


def test_a_real_request_survives_our_decoding(recorded: Messages) -> None:
    payloads = front_end(recorded, wire.ADD)
    assert len(payloads) >= 5
    for payload in payloads:
        assert decode(wire.encode(wire.decode_add(payload))) == decode(payload)


def test_real_outputs_survive_our_decoding(recorded: Messages) -> None:
    seen = 0
    for instance in ("p0", "d0"):
        for payload in outputs(recorded, instance):
            ours, theirs = decode(wire.encode(wire.decode_outputs(payload))), decode(payload)
            assert ours[:2] + ours[3:] == theirs[:2] + theirs[3:]
            seen += len(theirs[1])
    assert seen >= 20


def test_real_statistics_tell_of_blocks_and_transfers(recorded: Messages) -> None:
    stats = [
        message.scheduler_stats
        for message in map(wire.decode_outputs, outputs(recorded, "d0"))
        if message.scheduler_stats is not None
    ]
    assert any(s.kv_cache_usage > 0 for s in stats)
    moved = [wire.connector_stats(s) for s in stats]
    assert sum(len(m.bytes_transferred) for m in moved if m is not None) >= 1


def test_real_outputs_tell_how_long_a_request_was_queued(recorded: Messages) -> None:
    given = [o for payload in outputs(recorded, "p0") for o in wire.decode_outputs(payload).outputs]
    queues = [queued_s(o.events) for o in given if o.request_id.startswith("p:")]
    assert len(queues) >= 4
    assert all(queue is not None and 0 < queue < 1 for queue in queues)


def test_a_real_ready_payload_is_of_its_version(recorded: Messages) -> None:
    for instance in ("p0", "d0"):
        _identity, payload = recorded[f"{instance} requests"][0]
        wire.check_version(wire.decode_ready(payload).vllm_version)


@pytest.fixture
def fake_engine_frames() -> Messages:
    """What the fake engine says to a handshake, a prefill leg and a decode leg."""
    context = zmq.Context()
    handshake, requests = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    results = context.socket(zmq.PULL)
    addresses = [f"tcp://127.0.0.1:{port}" for port in free_ports(3)]
    for socket, address in zip((handshake, requests, results), addresses, strict=True):
        socket.bind(address)
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
    engine = FakeEngine(addresses[0], KvStore())
    identity, hello = handshake.recv_multipart()
    welcome = wire.Welcome(wire.Addresses([addresses[1]], [addresses[2]]))
    handshake.send_multipart([identity, wire.encode(welcome)])
    _, ready = requests.recv_multipart()
    _, greeting = handshake.recv_multipart()
    transfer = {"kv_transfer_params": {"do_remote_decode": True}}
    leg = wire.AddRequest(
        "p:1", wire.raw([1, 2]), wire.NIL, {"max_tokens": 1, "extra_args": transfer}, wire.NIL,
        0.0, wire.NIL, None, None,
    )  # fmt: skip
    requests.send_multipart([identity, wire.ADD, wire.encode(leg)])
    prefilled = results.recv()
    engine.kill()
    for socket in (handshake, requests, results):
        socket.close(linger=0)
    context.term()
    return {"handshake": [[hello], [greeting]], "requests": [[ready]], "outputs": [[prefilled]]}


def test_the_fake_engine_greets_as_the_real_one(
    recorded: Messages, fake_engine_frames: Messages
) -> None:
    real = [decode(message[1]) for message in recorded["p0 handshake"]]
    fake = [decode(message[0]) for message in fake_engine_frames["handshake"]]
    assert [m["status"] for m in fake] == [m["status"] for m in real] == ["HELLO", "READY"]
    assert fake[0] == real[0]
    assert fake[1].keys() <= real[1].keys()


def test_the_fake_engines_ready_payload_has_the_real_ones_keys(
    recorded: Messages, fake_engine_frames: Messages
) -> None:
    real, fake = decode(recorded["p0 requests"][0][1]), decode(fake_engine_frames["requests"][0][0])
    assert fake.keys() <= real.keys()
    assert all(shape(fake[key]) == shape(real[key]) for key in fake if real[key] is not None)


def test_the_fake_engines_hand_over_is_like_the_real_one(
    recorded: Messages, fake_engine_frames: Messages
) -> None:
    def last(payloads: list[bytes]) -> list[Any]:
        found = [o for p in payloads for o in decode(p)[1] if o[8] is not None]
        return list(found[-1])

    real = last(outputs(recorded, "p0"))
    fake = last([message[0] for message in fake_engine_frames["outputs"]])
    assert fits(fake, real)
    assert fake[8].keys() <= real[8].keys()
    assert all(shape(v) == shape(real[8][k]) for k, v in fake[8].items() if v is not None)
    assert fits(decode(fake_engine_frames["outputs"][0][0]), decode(outputs(recorded, "p0")[-1]))


def test_the_fake_front_ends_request_is_like_a_real_one(recorded: Messages) -> None:
    fake = decode(FakeFront.request("r", [1, 2, 3], max_tokens=3))
    for payload in front_end(recorded, wire.ADD):
        real = decode(payload)
        assert fits(fake, real)
        assert fake[3].keys() <= real[3].keys() | {"max_tokens"}
