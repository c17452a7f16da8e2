"""Engines that report statistics without a pause: taken in now and then, and the last of them always."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from pathlib import Path

import zmq

from fakes.cluster import make_plan
from vdisagg.control import wire
from vdisagg.control.endpoint import NOTHING_MOVED, STATISTICS_ONLY, Endpoint
from vdisagg.control.sockets import Sockets

COUNT = 500
MOVED = wire.raw({"num_kv_expired_reqs": [1.0]})


class Heard:
    """Counts what an endpoint says."""

    def __init__(self) -> None:
        self.heard = 0
        self.running: list[int] = []
        self.expired = 0

    def engine_hello(self, name: str) -> None: ...

    def engine_ready(self, name: str, payload: bytes, ready: wire.Ready) -> None: ...

    def engine_outputs(self, name: str, message: wire.Outputs, frames: Sequence[bytes]) -> None:
        assert message.scheduler_stats is not None
        self.running.append(message.scheduler_stats.num_running_reqs)
        self.expired += message.scheduler_stats.kv_connector_stats != wire.NIL

    def engine_heard(self, name: str) -> None:
        self.heard += 1

    def engine_lost(self, name: str) -> None: ...

    def engine_back(self, name: str) -> None: ...

    def engine_dead(self, name: str, reason: str) -> None:
        raise AssertionError(reason)


def test_repeated_statistics_cost_little_and_none_that_count_are_passed_over(
    tmp_path: Path,
) -> None:
    instance = make_plan(tmp_path, 1, 1, interval_s=3600).instances[0]
    sockets, heard = Sockets(), Heard()
    endpoint = Endpoint(sockets, instance, heard)
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.linger = 0
        push.connect(instance.outputs.zmq)
        for number in range(1, COUNT + 1):
            moved = MOVED if number % 100 == 50 else wire.NIL
            stats = wire.SchedulerStats(number, kv_connector_stats=moved)
            push.send(wire.encode(wire.Outputs(scheduler_stats=stats, timestamp=1.0)))
        deadline = time.monotonic() + 60
        while heard.heard + len(heard.running) < COUNT:
            assert time.monotonic() < deadline
            sockets.turn()
        endpoint.catch_up()
    sockets.close()
    assert heard.expired == COUNT // 100
    assert heard.running[-1] == COUNT
    assert len(heard.running) < COUNT / 2


def test_a_stock_engines_bare_statistics_are_known_by_their_bytes() -> None:
    """In frames recorded from one that had a handle nobody read."""
    recorded = json.loads((Path(__file__).parents[1] / "data" / "frames-0.32.0.json").read_text())
    payloads = [base64.b64decode(frames[0]) for frames in recorded["p0 outputs"]]
    bare = [p for p in payloads if p.startswith(STATISTICS_ONLY) and NOTHING_MOVED in p]
    assert len(bare) > 100
    for payload in bare:
        message = wire.decode_outputs(payload)
        assert message.outputs == []
        assert message.scheduler_stats is not None
        assert message.scheduler_stats.kv_connector_stats == wire.NIL
        assert message.utility_output is None
