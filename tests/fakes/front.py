"""A fake front end: binds what `vllm serve --data-parallel-size-local 0` binds, and asks for tokens.

It has the channel of the switches, as the real one: it outlives its controller.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from socket import create_server
from typing import Any

import msgspec
import zmq

from fakes.switches import load
from vdisagg.control import wire
from vdisagg.plan.model import Address

PATIENCE_S = 60.0
"""For what has to come, on a machine that stalls at times."""

CHANNEL = load("vdisagg_channel")


class FakeFront:
    """One process with `api_servers` input/output pairs; single-threaded, driven by the test."""

    def __init__(
        self, handshake: Address, *, api_servers: int = 1, patience_s: float = PATIENCE_S
    ) -> None:
        """`patience_s` is how long it waits for each of the controller's words."""
        self._patience_s = patience_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.IPV6, 1)
        self._host = handshake.zmq.rpartition(":")[0]
        self._handshake = self._context.socket(zmq.ROUTER)
        self._handshake.bind(handshake.zmq)
        self._inputs = [self._bound(zmq.ROUTER) for _ in range(api_servers)]
        self._outputs = [self._bound(zmq.PULL) for _ in range(api_servers)]
        self.channels = [CHANNEL.Channel() for _ in range(api_servers)]
        self._numbers = itertools.count()
        self.ready: dict[str, Any] = {}
        self.received: dict[str, list[wire.Output]] = defaultdict(list)
        self.arrived: dict[str, list[float]] = defaultdict(list)
        self.answers: dict[int, wire.UtilityOutput] = {}
        self.stats_seen = 0
        self._late: dict[int, str] = {}
        self._drops = 0
        self.tensors: list[list[bytes]] = []

    def delay_inputs(self, *, drops: int) -> None:
        """Let a plain TCP listener stand in for the input sockets until it has dropped `drops`
        connections unanswered, as the parent of slow API servers does."""
        self._drops = drops
        for number, late in enumerate(self._inputs):
            endpoint = self._address(late)
            late.unbind(endpoint)
            self._late[number] = endpoint

    def _drop_connections(self) -> None:
        for number, endpoint in self._late.items():
            port = int(endpoint.rsplit(":", 1)[1])
            with create_server(("127.0.0.1", port)) as listener:
                listener.settimeout(PATIENCE_S)
                for _ in range(self._drops):
                    listener.accept()[0].close()
            self._inputs[number].bind(endpoint)

    @property
    def health(self) -> list[Any]:
        """What the controller has said last of its health, by API server: (ok, reason, at), or None."""
        return [channel.health for channel in self.channels]

    def attach(self) -> None:
        """Go through the handshake with the controller."""
        identity, payload = self._recv(self._handshake)
        greeting = wire.decode_greeting(payload)
        assert (greeting.status, greeting.local, greeting.headless) == ("HELLO", False, True)
        addresses = {
            "inputs": [self._late.get(n) or self._address(s) for n, s in enumerate(self._inputs)],
            "outputs": [self._address(s) for s in self._outputs],
            "coordinator_input": None,
            "coordinator_output": None,
            "frontend_stats_publish_address": None,
        }
        welcome = {"addresses": addresses, "parallel_config": {}}
        self._handshake.send_multipart([identity, wire.encode(welcome)])
        self._drop_connections()
        for socket in self._inputs:
            _, ready = self._recv(socket)
            self.ready = msgspec.msgpack.decode(ready)
        _, payload = self._recv(self._handshake)
        assert wire.decode_greeting(payload).status == "READY"

    def close(self) -> None:
        """Close all sockets, as a front end that has died."""
        for socket in (self._handshake, *self._inputs, *self._outputs):
            socket.close(linger=0)
        self._context.term()

    def add(
        self,
        prompt: Sequence[int],
        *,
        request_id: str | None = None,
        api: int = 0,
        frames: Sequence[bytes] = (),
        **sampling: Any,
    ) -> str:
        """Send an ADD; returns the request's id."""
        name = request_id or f"cmpl-{next(self._numbers)}"
        self._send(api, wire.ADD, self.request(name, prompt, api=api, **sampling), frames)
        return name

    @staticmethod
    def request(name: str, prompt: Sequence[int], *, api: int = 0, **sampling: Any) -> bytes:
        """An ADD's payload."""
        return wire.encode(
            wire.AddRequest(
                request_id=name,
                prompt_token_ids=wire.raw(list(prompt)),
                mm_features=wire.NIL,
                sampling_params={"temperature": 0.0, "max_tokens": 16, **sampling},
                pooling_params=wire.NIL,
                arrival_time=time.time(),
                lora_request=wire.NIL,
                cache_salt=None,
                data_parallel_rank=None,
                client_index=api,
                external_req_id=name,
            )
        )

    def abort(self, *ids: str, api: int = 0) -> None:
        """Send an ABORT."""
        self._send(api, wire.ABORT, wire.encode(list(ids)))

    def call(self, call_id: int, method: str, *arguments: Any, api: int = 0) -> wire.UtilityOutput:
        """Send a UTILITY call and wait for its answer."""
        self._send(api, wire.UTILITY, wire.encode((api, call_id, method, arguments)))
        self.until(lambda: call_id in self.answers)
        return self.answers.pop(call_id)

    def until(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Take outputs in until `condition` holds; fails after `patience_s`."""
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            self.read(0.005)

    def read(self, wait_s: float = 0.0) -> None:
        """Take in what has arrived."""
        for api, socket in enumerate(self._outputs):
            while socket.poll(int(wait_s * 1000)):
                given, answers = self.channels[api].take(
                    socket.recv_multipart(), now=time.monotonic()
                )
                for answer in answers:
                    self._post(api, answer)
                if given is not None:
                    payload, *frames = given
                    self._note(api, wire.decode_outputs(payload), frames)

    def finish(self, request_id: str, patience_s: float = PATIENCE_S) -> list[int]:
        """Wait for the end of a request; returns its tokens."""
        self.until(lambda: self.finish_reason(request_id) is not None, patience_s)
        return self.tokens(request_id)

    def tokens(self, request_id: str) -> list[int]:
        """All tokens that have come so far."""
        return [t for o in self.received.get(request_id, ()) for t in o.new_token_ids]

    def finish_reason(self, request_id: str) -> int | None:
        """The finish reason, None before the end."""
        outputs = self.received.get(request_id)
        return outputs[-1].finish_reason if outputs else None

    def generate(self, prompt: Sequence[int], **sampling: Any) -> list[int]:
        """Ask, and wait for the whole answer."""
        return self.finish(self.add(prompt, **sampling))

    def send_raw(self, *frames: bytes) -> None:
        """Send the controller whatever a test thinks of."""
        self._inputs[0].send_multipart([wire.IDENTITY, *frames])

    def _note(self, api: int, message: wire.Outputs, frames: list[bytes]) -> None:
        self.stats_seen += message.scheduler_stats is not None
        if frames:
            self.tensors.append(frames)
        if message.utility_output is not None:
            self.answers[message.utility_output.call_id] = message.utility_output
        for output in message.outputs:
            self.received[output.request_id].append(output)
            self.arrived[output.request_id].append(time.monotonic())

    def _send(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes] = ()) -> None:
        self._inputs[api].setsockopt(zmq.ROUTER_MANDATORY, 1)
        sent = self.channels[api].send(
            [wire.IDENTITY, kind, payload, *frames],
            lambda numbered: self._post(api, numbered),
            clock=time.monotonic,
            sleep=time.sleep,
        )
        if not sent:
            raise ConnectionError("no controller is connected")

    def _post(self, api: int, frames: Sequence[bytes]) -> bool:
        """Whether a controller is connected that this could be sent to."""
        try:
            self._inputs[api].send_multipart(frames)
        except zmq.ZMQError as exc:
            if exc.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _recv(self, socket: zmq.Socket[bytes]) -> list[bytes]:
        assert socket.poll(int(self._patience_s * 1000)), "the controller says nothing"
        return socket.recv_multipart()

    def _bound(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.bind(f"{self._host}:*")
        return socket

    @staticmethod
    def _address(socket: zmq.Socket[bytes]) -> str:
        found = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(found, bytes)
        return found.decode().rstrip("\0")
