"""An executable `vllm` in the place of vLLM: engines and front ends of tests/fakes as processes.

`install` writes it. With `serve … --headless` it is a fake engine that dials the controller; without
--headless, the front end, with `/health` and `/v1/completions` (token ids or text in, token ids out:
those of `fakes.engine.continuation`). It takes its addresses from where vLLM takes them, and decode
reads what prefill computed over TCP, from the side channel that the handle names. So what works with it
has advertised the right addresses, and the network was there.

Variables that change it: STUB_LOAD_S (seconds of loading), STUB_LOAD_UNTIL (loads until there is this
file), STUB_EXIT (a code to end with instead of loading), STUB_DEAF (an engine that will not hear of TERM),
STUB_VERSION (of vLLM), STUB_NOISE (bytes to print before loading).
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
from pathlib import Path
from typing import Any

from fakes.engine import Behaviour, FakeEngine, KvStore
from vdisagg.control import wire
from vdisagg.plan.model import Address

TESTS = Path(__file__).parents[1]
READ_LIMIT_S = 5.0
RETRY_S = 0.2
LOOK_S = 0.05


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
    from fakes.completions import front_end  # here: an engine has no time for it

    return front_end(
        (asked.host, asked.port),
        Address(asked.data_parallel_address, asked.data_parallel_rpc_port),
        api_servers=asked.api_server_count,
        key=os.environ.get("VLLM_API_KEY"),
    )


def _engine(asked: argparse.Namespace, version: str) -> int:
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    sys.stdout.write("noise\n" * (int(os.environ.get("STUB_NOISE", "0")) // 6))
    if "STUB_EXIT" in os.environ:
        print("stub: cannot load the model", flush=True)
        return int(os.environ["STUB_EXIT"])
    if signal.sigtimedwait(signals, float(os.environ.get("STUB_LOAD_S", "0"))) is not None:
        return 0
    while not Path(os.environ.get("STUB_LOAD_UNTIL", "/")).exists():
        if signal.sigtimedwait(signals, LOOK_S) is not None:
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

    def __init__(
        self,
        handshake: str,
        store: KvStore,
        *,
        side: Address,
        version: str,
        behaviour: Behaviour | None = None,
    ) -> None:
        self._side = side
        self._read: queue.SimpleQueue[wire.AddRequest] = queue.SimpleQueue()
        named = f"stub {side}"
        super().__init__(handshake, store, name=named, version=version, behaviour=behaviour)

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
