"""A hand that plays the controller to engines that are up: one leg at a time, with any handle one likes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from real.conftest import RealCluster
from real.cores import kill, pids, recorded
from vdisagg.control import saved, wire
from vdisagg.control.dummies import DUMMY
from vdisagg.control.endpoint import Endpoint
from vdisagg.control.handover import HANDOVERS, Params, with_transfer
from vdisagg.control.sockets import Sockets

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Ended:
    """How a leg has ended."""

    tokens: list[int]
    finish_reason: int
    handle: dict[str, Any] | None

    @property
    def failed(self) -> bool:
        """Whether the engine says so."""
        return self.finish_reason in (wire.ERROR, wire.ABORTED)


class Hand:
    """Endpoints for all instances of a cluster whose controller has gone. See EngineEvents."""

    def __init__(self, cluster: RealCluster, sockets: Sockets) -> None:
        found = recorded(cluster)
        self.dead: list[str] = []
        self._cluster = cluster
        self._connected: set[str] = set()
        self._outputs: dict[str, list[wire.Output]] = {}
        self._legs = 0
        self.sockets = sockets
        before = saved.read(cluster.state, created=found.created, say=print)
        assert before is not None
        self._endpoints = {}
        for instance in found.plan.instances:
            endpoint = Endpoint(self.sockets, instance, self)
            payload = before.instances[instance.name].ready
            assert payload is not None
            endpoint.restore(payload)
            self._endpoints[instance.name] = endpoint
        self.until(lambda: self._connected == set(self._endpoints), "connections")

    def engine_hello(self, name: str) -> None:
        """An engine has been started again: the last one has ended."""
        self.dead.append(name)

    def engine_ready(self, name: str, payload: bytes, ready: wire.Ready) -> None:
        """See EngineEvents."""

    def engine_outputs(self, name: str, message: wire.Outputs, frames: Sequence[bytes]) -> None:
        """See EngineEvents."""
        for output in message.outputs:
            self._outputs.setdefault(output.request_id, []).append(output)

    def engine_heard(self, name: str) -> None:
        """See EngineEvents."""

    def engine_lost(self, name: str) -> None:
        """See EngineEvents."""
        self.dead.append(name)

    def engine_back(self, name: str) -> None:
        """See EngineEvents."""
        self._connected.add(name)

    def engine_dead(self, name: str, reason: str) -> None:
        """See EngineEvents."""
        self.dead.append(name)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Listen until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (
                f"no {what} within {PATIENCE_S} s; dead: {self.dead}"
            )
            self.sockets.turn()

    def leg(self, name: str, prompt: Sequence[int], sampling: Params) -> Ended:
        """Ask an engine, and wait for the end; one that dies of it fails the test."""
        self._legs += 1
        leg = f"hand-{self._legs}"
        request = msgspec.structs.replace(
            DUMMY,
            request_id=leg,
            prompt_token_ids=wire.raw(list(prompt)),
            sampling_params=sampling,
            arrival_time=time.time(),
            # No cache may have what is to be read.
            cache_salt=leg,
        )
        assert self._endpoints[name].send(wire.ADD, wire.encode(request))
        self.until(
            lambda: any(o.finish_reason is not None for o in self._outputs.get(leg, ())),
            f"end of a leg on {name}",
        )
        outputs = self._outputs.pop(leg)
        last = outputs[-1]
        assert last.finish_reason is not None
        handle = wire.decode_value(last.kv_transfer_params)
        tokens = [token for output in outputs for token in output.new_token_ids]
        return Ended(tokens, last.finish_reason, handle)

    def prefill(self, name: str, prompt: Sequence[int]) -> Ended:
        """A prompt computed, for somebody else to read."""
        return self.leg(name, prompt, HANDOVERS["nixl"].prefill(greedy(1)))

    def decode(
        self, name: str, prompt: Sequence[int], handle: Mapping[str, Any], count: int
    ) -> Ended:
        """What comes of a handle."""
        return self.leg(name, prompt, with_transfer(greedy(count), dict(handle)))


def greedy(count: int) -> Params:
    """An exact number of likeliest tokens."""
    return {"temperature": 0.0, "max_tokens": count, "ignore_eos": True}


@contextmanager
def hand_on(cluster: RealCluster) -> Iterator[Hand]:
    """Takes the controller's place, for good: it and its guard are gone afterwards."""
    for pid in reversed(pids(cluster, "controller")):
        kill(pid)
    sockets = Sockets()
    try:
        yield Hand(cluster, sockets)
    finally:
        sockets.close()
