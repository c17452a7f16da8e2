"""The least that could stand where the controller does: one prefill and one decode engine, nothing kept, checked or
mended. What it costs is what benchmarks/controller.py measures the controller against.

    python benchmarks/forwarder.py DIRECTORY      # of a cluster's record, like python -m vdisagg.control
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from vdisagg.cluster import record
from vdisagg.plan.model import Instance, Plan

ADD, IDENTITY, NUMBER_BYTES = b"\0", b"\0\0", 16
TRANSFER = {"do_remote_decode": True, "do_remote_prefill": False}
HELLO, READY = ({"status": word, "local": False, "headless": True} for word in ("HELLO", "READY"))

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode
context = zmq.asyncio.Context()


class Engine:
    """The three sockets that an engine dials."""

    def __init__(self, instance: Instance) -> None:
        self._where = {"inputs": [instance.requests.zmq], "outputs": [instance.outputs.zmq]}
        self._handshake = context.socket(zmq.ROUTER)
        self._handshake.bind(instance.handshake.zmq)
        self._requests = context.socket(zmq.ROUTER)
        self._requests.bind(instance.requests.zmq)
        self.outputs = context.socket(zmq.PULL)
        self.outputs.bind(instance.outputs.zmq)

    async def meet(self) -> Any:
        """Its ready payload."""
        identity, _ = await self._handshake.recv_multipart()
        welcome = {"addresses": self._where, "parallel_config": {}}
        await self._handshake.send_multipart([identity, encode(welcome)])
        await self._handshake.recv()
        _, ready = await self._requests.recv_multipart()
        return decode(ready)

    async def send(self, kind: bytes, payload: bytes) -> None:
        """A message of the front end's, or one like it."""
        await self._requests.send_multipart([IDENTITY, kind, payload])


def with_transfer(request: list[Any], transfer: Any, **changes: Any) -> bytes:
    """A request with a connector's parameters, and other sampling parameters."""
    return encode([*request[:3], request[3] | changes | {"extra_args": transfer}, *request[4:]])


async def forward(plan: Plan) -> None:
    """Serve until killed."""
    prefill, decoder = (Engine(instance) for instance in plan.instances)
    ready, _ = await asyncio.gather(prefill.meet(), decoder.meet())
    handshake, inputs = (context.socket(zmq.DEALER) for _ in range(2))
    for socket in (handshake, inputs):
        socket.identity = IDENTITY
    handshake.connect(plan.front_end.handshake.zmq)
    await handshake.send(encode(HELLO))
    addresses = decode(await handshake.recv())["addresses"]
    inputs.connect(addresses["inputs"][0])
    await inputs.send(encode(ready))
    outputs = context.socket(zmq.PUSH)
    outputs.connect(addresses["outputs"][0])
    await handshake.send(encode(READY))
    waiting: dict[str, list[Any]] = {}

    async def from_front() -> None:
        while True:
            kind, payload, *_number = await inputs.recv_multipart()
            if kind == ADD:
                request = decode(payload)
                waiting[request[0]] = request
                transfer = {"kv_transfer_params": TRANSFER}
                await prefill.send(ADD, with_transfer(request, transfer, max_tokens=1))

    async def from_prefill() -> None:
        while True:
            for output in decode(await prefill.outputs.recv())[1]:
                request = waiting.pop(output[0])
                await decoder.send(ADD, with_transfer(request, {"kv_transfer_params": output[8]}))

    async def from_decode() -> None:
        while True:
            await outputs.send(await decoder.outputs.recv())

    await asyncio.gather(from_front(), from_prefill(), from_decode())


if __name__ == "__main__":
    recorded = record.read(Path(sys.argv[1]))
    assert recorded
    asyncio.run(forward(recorded.plan))
