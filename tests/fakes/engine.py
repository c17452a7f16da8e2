"""A fake engine core on vLLM's wire protocol, and the KV store that fakes share.

It samples by a hash over everything that precedes a token, so that a prefill and a decode engine agree
exactly when the decode engine has what prefill wrote, and any mix-up changes the answer. What it sends
is held against frames recorded from the real engine (tests/control/test_recorded_frames.py).
"""

from __future__ import annotations

import math
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from vdisagg.control import wire

BLOCK_SIZE = 16
BLOCKS = 1000


def next_token(tokens: Sequence[int]) -> int:
    """The greedy continuation of `tokens`."""
    return 100 + zlib.crc32(repr(list(tokens)).encode()) % 10_000


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """`count` greedy tokens after `prompt`: what one plain engine answers."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


SURE, CLOSE = 3.0, 0.01
"""Gaps between the log probabilities of the two likeliest tokens: ordinarily, and at a near tie."""


def logprobs(tokens: Sequence[int], gap: float) -> msgspec.Raw:
    """`new_logprobs` of one sampled token: with the two likeliest, as vLLM encodes small arrays.

    `tokens`: the sampled one, then the likeliest ones.
    """

    def array(kind: str, code: str, values: Sequence[float], shape: list[int]) -> list[Any]:
        return [kind, shape, msgspec.msgpack.Ext(wire.ARRAY, struct.pack(f"<{code}", *values))]

    values = {token: -0.1 - gap * place for place, token in enumerate(tokens[1:])}
    width = len(tokens)
    rows = [1, width]
    return wire.raw(
        [
            array("<i4", f"{width}i", tokens, rows),
            array("<f4", f"{width}f", [values[token] for token in tokens], rows),
            array("<i4", "i", [1 + tokens[1:].index(tokens[0])], [1]),
            None,
        ]
    )


def events(queued: float, scheduled: float) -> msgspec.Raw:
    """What an engine tells with a request's first output, on its own clock."""
    told = ((wire.QUEUED, queued), (wire.SCHEDULED, scheduled))
    return wire.raw([{"type": kind, "timestamp": at} for kind, at in told])


@dataclass
class KvStore:
    """What prefill engines hold for their peers: leg id → prompt. Thread-safe through the GIL."""

    held: dict[str, tuple[int, ...]] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    misread: list[str] = field(default_factory=list)
    """Handles that were asked for and not there: used twice, foreign, or given back."""


@dataclass
class _Job:
    request: wire.AddRequest
    prompt: list[int]
    tokens: list[int]
    remote_decode: bool
    remote_prefill: bool = False
    first: bool = True
    queued: float = field(default_factory=time.monotonic)


@dataclass
class Behaviour:
    """Switches that a test may turn while the engine runs."""

    step_s: float = 0.0
    frozen: bool = False
    """Takes messages in, and answers nothing: a hung engine."""
    corrupt: bool = False
    """Decode: what was read is not what prefill wrote."""
    fail: Callable[[wire.AddRequest], bool] = lambda request: False
    """Requests that end in a finish reason of error."""
    lose_handle: bool = False
    """Prefill: finishes without transfer parameters."""
    stall: Callable[[wire.AddRequest], bool] = lambda request: False
    """Requests that get nowhere (a transfer that never ends), while the engine goes on with the others
    and reports its statistics."""
    most_tokens: Callable[[wire.AddRequest], float] = lambda request: math.inf
    """A request gets no further than so many tokens."""
    near_tie: bool = False
    """Two tokens are always as good as equal; decode takes the other one first after a transfer."""
    mute: bool = False
    """What it says is lost on its way."""
    deaf: bool = False
    """Requests are lost on their way to it."""
    max_num_seqs: int = 128
    """Requests that run at once, the others wait. In the ready payload as well."""


class FakeEngine:
    """Dials a handshake address like `vllm serve --headless` does, and serves until `kill`."""

    IDLE_MS = 5
    """How long it waits for a message before it looks around."""

    def __init__(
        self,
        handshake: str,
        store: KvStore,
        *,
        name: str = "fake",
        version: str = "0.32.0",
        behaviour: Behaviour | None = None,
        heartbeat_s: float | None = None,
    ) -> None:
        """`heartbeat_s`: its sockets ping, too, which a stock engine's do not."""
        self.name = name
        self.behaviour = behaviour or Behaviour()
        self.added: list[wire.AddRequest] = []
        self.aborted: list[str] = []
        self.utilities: list[tuple[str, Any]] = []
        self.frames: list[list[bytes]] = []
        self.running: dict[str, _Job] = {}
        self._store = store
        self._handshake = handshake
        self._version = version
        self._heartbeat_s = heartbeat_s
        self._owned: set[str] = set()
        self._killed = threading.Event()
        self._last_words: bytes | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End without a word, as after kill -9: connections close."""
        self._killed.set()
        self._thread.join()

    def die(self) -> None:
        """End with the death notice of an engine core whose executor failed."""
        self._last_words = wire.ENGINE_CORE_DEAD
        self.kill()

    @property
    def blocks_used(self) -> int:
        """Blocks of running requests and of held handles."""
        tokens = [len(job.prompt) + len(job.tokens) for job in list(self.running.values())]
        tokens += [len(self._store.held[k]) for k in list(self._owned) if k in self._store.held]
        return sum(-(-count // BLOCK_SIZE) for count in tokens)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        context = zmq.Context()
        context.setsockopt(zmq.IPV6, 1)
        if self._heartbeat_s is not None:
            context.setsockopt(zmq.HEARTBEAT_IVL, round(1000 * self._heartbeat_s / 2))
            context.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(1000 * self._heartbeat_s / 2))
        sockets = [self._dealer(context), self._dealer(context), context.socket(zmq.PUSH)]
        try:
            self._serve(*sockets)
        finally:
            for socket in sockets:
                socket.close(linger=200 if self._last_words else 0)
            context.term()

    def _serve(
        self,
        handshake: zmq.Socket[bytes],
        requests: zmq.Socket[bytes],
        outputs: zmq.Socket[bytes],
    ) -> None:
        handshake.connect(self._handshake)
        handshake.send(wire.encode({"status": "HELLO", "local": False, "headless": True}))
        if not self._wait(handshake):
            return
        addresses = wire.decode_welcome(handshake.recv()).addresses
        requests.connect(addresses.inputs[0])
        requests.send(wire.encode(self._ready()))
        outputs.connect(addresses.outputs[0])
        handshake.send(
            wire.encode(
                {
                    "status": "READY",
                    "local": False,
                    "headless": True,
                }
            )
        )
        while not self._killed.is_set():
            busy = self.running and not self.behaviour.frozen
            if requests.poll(int(self.behaviour.step_s * 1000) if busy else self.IDLE_MS):
                for kind, payload, *frames in self._drain(requests):
                    for message in self._take(kind, payload, frames):
                        outputs.send(wire.encode(message))
            made = self._step() if not self.behaviour.frozen else None
            if made is not None and not self.behaviour.mute:
                outputs.send(wire.encode(made))
        if self._last_words is not None:
            outputs.send(self._last_words)

    @staticmethod
    def _dealer(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, wire.IDENTITY)
        return socket

    def _wait(self, socket: zmq.Socket[bytes]) -> bool:
        while not self._killed.is_set():
            if socket.poll(self.IDLE_MS):
                return True
        return False

    @staticmethod
    def _drain(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
        while socket.poll(0):
            yield socket.recv_multipart()

    def _ready(self) -> dict[str, Any]:
        return {
            "max_model_len": 4096,
            "num_gpu_blocks": BLOCKS + 1,
            "block_size": BLOCK_SIZE,
            "dp_stats_address": None,
            "dtype": "float32",
            "vllm_version": self._version,
            "world_size": 1,
            "data_parallel_size": 1,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "data_parallel_rank": 0,
            "max_num_seqs": self.behaviour.max_num_seqs,
            "max_num_batched_tokens": 4096,
            "instance_id": self.name,
            "supports_lora": False,
            "max_loras": 0,
        }

    def _take(self, kind: bytes, payload: bytes, frames: list[bytes]) -> Iterator[wire.Outputs]:
        if kind == wire.ADD and not self.behaviour.deaf:
            self._add(wire.decode_add(payload))
            self.frames.append(frames)
        elif kind == wire.ABORT:
            for request_id in wire.decode_ids(payload):
                self.aborted.append(request_id)
                self.running.pop(request_id, None)
        elif kind == wire.UTILITY:
            _, call_id, method, arguments = wire.decode_utility(payload)
            self.utilities.append((method, wire.decode_value(arguments)))
            result = ["generate"] if method == "get_supported_tasks" else None
            answer = wire.UtilityOutput(call_id, None, wire.raw((None, result)))
            yield wire.Outputs(timestamp=time.monotonic(), utility_output=answer)

    def _add(self, request: wire.AddRequest) -> None:
        self.added.append(request)
        prompt = wire.decode_value(request.prompt_token_ids)
        extra = (request.sampling_params or {}).get("extra_args") or {}
        transfer = extra.get("kv_transfer_params") or {}
        if transfer.get("do_remote_prefill"):
            handle = transfer["remote_request_id"]
            known = self._store.held.pop(handle, None)
            if request.abort_immediately:
                self._store.released.append(handle)
                return
            if known is None:
                self._store.misread.append(handle)
            else:
                self._store.read.append(handle)
            if known is None or self.behaviour.corrupt:
                prompt = [*prompt[:-1], prompt[-1] + 1]
            else:
                prompt = list(known)
        elif request.abort_immediately:
            return
        remote_decode = bool(transfer.get("do_remote_decode"))
        remote_prefill = bool(transfer.get("do_remote_prefill"))
        job = _Job(request, prompt, [], remote_decode, remote_prefill)
        self.running[request.request_id] = job

    def _step(self) -> wire.Outputs | None:
        if not self.running:
            return None
        time.sleep(self.behaviour.step_s)
        jobs = list(self.running.values())
        places = self.behaviour.max_num_seqs
        waiting = len(jobs[places:])
        moving = [job for job in jobs[:places] if self._moves(job)]
        if not moving:
            time.sleep(self.IDLE_MS / 1000)
        outputs = [self._advance(job) for job in moving]
        for output in outputs:
            if output.finish_reason is not None:
                self.running.pop(output.request_id, None)
        running = len(self.running) - waiting
        stats = wire.SchedulerStats(running, waiting, self.blocks_used / BLOCKS)
        return wire.Outputs(outputs=outputs, scheduler_stats=stats, timestamp=time.monotonic())

    def _moves(self, job: _Job) -> bool:
        held = len(job.tokens) >= self.behaviour.most_tokens(job.request)
        return not held and not self.behaviour.stall(job.request)

    def _advance(self, job: _Job) -> wire.Output:
        sampling = job.request.sampling_params or {}
        output = wire.Output(job.request.request_id, [])
        if self.behaviour.fail(job.request):
            output.finish_reason = wire.ERROR
            return output
        likeliest = next_token([*job.prompt, *job.tokens])
        token = likeliest
        if self.behaviour.near_tie and job.remote_prefill and job.first:
            token = likeliest + 1
        if sampling.get("logprobs"):
            gap = CLOSE if self.behaviour.near_tie else SURE
            output.new_logprobs = logprobs([token, likeliest, likeliest + 1], gap)
        job.tokens.append(token)
        output.new_token_ids = [token]
        if job.first:
            cached = 0 if job.remote_decode else len(job.prompt)
            output.prefill_stats = wire.raw({"num_cached_tokens": cached})
            output.events = events(job.queued, time.monotonic())
            job.first = False
        if len(job.tokens) >= sampling.get("max_tokens", 16):
            output.finish_reason = wire.LENGTH
            if job.remote_decode and not self.behaviour.lose_handle:
                self._store.held[output.request_id] = tuple(job.prompt)
                self._owned.add(output.request_id)
                output.kv_transfer_params = wire.raw(self._handle(output.request_id, job))
        return output

    def _handle(self, request_id: str, job: _Job) -> dict[str, Any]:
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(-(-len(job.prompt) // BLOCK_SIZE)))],
            "remote_engine_id": self.name,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 1,
            "tp_size": 1,
            "remote_num_tokens": len(job.prompt),
        }


def raw_prompt(tokens: Sequence[int]) -> msgspec.Raw:
    """Token ids as they stand in an ADD request."""
    return wire.raw(list(tokens))
