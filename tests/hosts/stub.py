"""An executable `vllm` in the place of vLLM: engines and front ends of tests/fakes as processes.

`install` writes it. With `serve … --headless` it is a fake engine that dials the controller; without
--headless, the front end, with `/health` and `/v1/completions` (token ids or text in, token ids out:
those of `fakes.engine.continuation`). It takes its addresses from where vLLM takes them, and decode
reads what prefill computed over TCP, from the side channel that the handle names. So what works with it
has advertised the right addresses, and the network was there.

Variables that change it: STUB_LOAD_S (seconds of loading), STUB_EXIT (a code to end with instead of
loading), STUB_DEAF (an engine that will not hear of TERM), STUB_VERSION (of vLLM), STUB_NOISE (bytes to
print before loading).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import socket
import socketserver
import sys
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fakes.engine import FakeEngine, KvStore
from fakes.front import FakeFront
from vdisagg.control import wire
from vdisagg.plan.model import Address

TESTS = Path(__file__).parents[1]
PATIENCE_S = 600.0
READ_LIMIT_S = 5.0
RETRY_S = 0.2
CHECK_S = 0.01


def install(directory: Path) -> Path:
    """Write `vllm` into that directory; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    executable = directory / "vllm"
    paths = [str(TESTS), str(TESTS.parent)]
    executable.write_text(
        f"#!{sys.executable}\n"
        f"import sys\n"
        f"sys.path[:0] = {paths!r}\n"
        f"from hosts.stub import main\n"
        f"sys.exit(main(sys.argv[1:]))\n"
    )
    executable.chmod(0o755)
    return executable


def main(words: list[str]) -> int:
    """The command line of vLLM, as far as a plan uses it."""
    version = os.environ.get("STUB_VERSION", "0.32.0")
    if words[:1] in (["--version"], ["-v"]):
        print(version)
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--data-parallel-address", default="127.0.0.1")
    parser.add_argument("--data-parallel-rpc-port", type=int, default=29550)
    parser.add_argument("--api-server-count", type=int, default=1)
    asked, _ = parser.parse_known_args(words)
    print(f"stub of vLLM {version}: {' '.join(words)}", flush=True)
    if asked.headless:
        return _engine(asked, version)
    return _front_end(asked)


# -- engines ------------------------------------------------------------------------------------


def _engine(asked: argparse.Namespace, version: str) -> int:
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    sys.stdout.write("noise\n" * (int(os.environ.get("STUB_NOISE", "0")) // 6))
    if "STUB_EXIT" in os.environ:
        print("stub: cannot load the model", flush=True)
        return int(os.environ["STUB_EXIT"])
    if signal.sigtimedwait(signals, float(os.environ.get("STUB_LOAD_S", "0"))) is not None:
        return 0
    # With data-parallel size 1 vLLM looks at the variable only, whatever --data-parallel-address says.
    host = os.environ.get("VLLM_DP_MASTER_IP", "127.0.0.1")
    side = Address(
        os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")),
    )
    store = KvStore()
    with _SideChannel(side, store):
        handshake = Address(host, asked.data_parallel_rpc_port)
        engine = NetworkEngine(handshake.zmq, store, side=side, version=version)
        while signal.sigwait(signals) and "STUB_DEAF" in os.environ:
            print("stub: goes on", flush=True)
        engine.kill()
    return 0


class NetworkEngine(FakeEngine):
    """A fake engine whose decode side reads from the host and port that a handle names."""

    IDLE_MS = 20

    def __init__(self, handshake: str, store: KvStore, *, side: Address, version: str) -> None:
        self._side = side
        self._read: queue.SimpleQueue[wire.AddRequest] = queue.SimpleQueue()
        super().__init__(handshake, store, name=f"stub {side}", version=version)

    def _handle(self, request_id: str, job: Any) -> dict[str, Any]:
        here = {"remote_host": self._side.host, "remote_port": self._side.port}
        return {**super()._handle(request_id, job), **here}

    def _add(self, request: wire.AddRequest) -> None:
        extra = (request.sampling_params or {}).get("extra_args") or {}
        transfer = extra.get("kv_transfer_params") or {}
        if transfer.get("do_remote_prefill"):
            reading = threading.Thread(target=self._fetch, args=(request, transfer), daemon=True)
            reading.start()
        else:
            super()._add(request)

    def _fetch(self, request: wire.AddRequest, transfer: dict[str, Any]) -> None:
        """Reads until it succeeds, as NIXL does: a request waits for its peer without a word."""
        handle = transfer["remote_request_id"]
        while request.request_id not in self.aborted:
            try:
                prompt = fetch((transfer["remote_host"], transfer["remote_port"]), handle)
            except OSError:
                time.sleep(RETRY_S)
                continue
            if prompt is not None:
                self._store.held[handle] = tuple(prompt)
            self._read.put(request)
            return

    def _step(self) -> wire.Outputs | None:
        while not self._read.empty():
            super()._add(self._read.get())
        return super()._step()


def fetch(side: tuple[str, int], handle: str) -> list[int] | None:
    """What a prefill engine holds under this handle, which is then gone there."""
    with socket.create_connection(side, READ_LIMIT_S) as connection:
        connection.sendall(json.dumps(handle).encode() + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline()
    if not line:
        raise ConnectionError("the peer has hung up")
    prompt: list[int] | None = json.loads(line)
    return prompt


class _SideChannel(socketserver.ThreadingTCPServer):
    """Gives each handle's tokens to the first that asks for them."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, side: Address, store: KvStore) -> None:
        if ":" in side.host:
            self.address_family = socket.AF_INET6
        self.store = store
        super().__init__((side.host, side.port), _Read)

    def __enter__(self) -> _SideChannel:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self


class _Read(socketserver.StreamRequestHandler):
    server: _SideChannel

    def handle(self) -> None:
        handle = json.loads(self.rfile.readline())
        self.wfile.write(json.dumps(self.server.store.held.pop(handle, None)).encode() + b"\n")


# -- the front end ------------------------------------------------------------------------------


def _front_end(asked: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    handshake = Address(asked.data_parallel_address, asked.data_parallel_rpc_port)
    front = FakeFront(handshake, api_servers=asked.api_server_count, patience_s=PATIENCE_S)
    front.attach()
    asking: queue.SimpleQueue[_Question] = queue.SimpleQueue()
    http = _Http((asked.host, asked.port), asking)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    waiting: dict[str, _Question] = {}
    while True:  # the only thread that touches the front end's sockets
        while not asking.empty():
            question = asking.get()
            waiting[front.add(question.prompt, **question.sampling)] = question
        front.read(CHECK_S)
        for name in [name for name in waiting if front.finish_reason(name) is not None]:
            answer = (front.tokens(name), front.finish_reason(name))
            waiting.pop(name).answer.set_result(answer)


class _Question:
    """A prompt, and the tokens and the finish reason that are to come."""

    def __init__(self, prompt: list[int], sampling: dict[str, Any]) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.answer: Future[tuple[list[int], int | None]] = Future()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], asking: queue.SimpleQueue[_Question]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.asking = asking
        super().__init__(address, _Api)

    def server_bind(self) -> None:
        """Without the look-up of our own name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]


class _Api(BaseHTTPRequestHandler):
    server: _Http

    def do_GET(self) -> None:
        self._reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = os.environ.get("VLLM_API_KEY")
        if key is not None and self.headers.get("authorization") != f"Bearer {key}":
            self._reply(401, {"error": "Unauthorized"})
            return
        prompt = body["prompt"]
        prompt = list(prompt.encode()) if isinstance(prompt, str) else prompt
        sampling = {k: body[k] for k in ("max_tokens", "temperature") if k in body}
        question = _Question(prompt, sampling)
        self.server.asking.put(question)
        tokens, reason = question.answer.result(PATIENCE_S)
        if reason == wire.ERROR:
            self._reply(500, {"error": "the engine failed"})
            return
        choice = {"index": 0, "text": " ".join(map(str, tokens)), "token_ids": tokens}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        choices = [{**choice, "finish_reason": "length"}]
        self._reply(200, {"choices": choices, "usage": usage, "model": body.get("model")})

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
