"""A stand-in for the `vllm` command whose engines have vLLM's processes: a parent, its engine core, a model process.

    install(directory)  →  directory/vllm

As tests/hosts/stub.py, on which it builds, and slow enough to be hit in the middle of a stream. What
can be killed and stopped is called as with vLLM: `VLLM::EngineCore`, and with
`--distributed-executor-backend mp` below it `VLLM::Worker`. The parent ends with exit code 0 when its
core has died, as vLLM's does.

STUB_STEP_S: seconds that an engine takes for a step. At SIGUSR1 a core lets no request but probes get on any more,
but steps on and speaks; at SIGUSR2 all get on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from fakes.engine import Behaviour, KvStore
from hosts.stub import NetworkEngine, _SideChannel
from hosts.stub import main as stock
from vdisagg.control import wire
from vdisagg.plan.model import Address

TESTS: Final = Path(__file__).parents[1]
CORE: Final = "VLLM::EngineCore"
WORKER: Final = "VLLM::Worker"
CODE: Final = (
    f"import sys\nsys.path[:0] = {[str(TESTS), str(TESTS.parent)]!r}\n"
    "from faults.stub import {what}\nsys.exit({what}(sys.argv[1:]))\n"
)
TITLED: Final = 'exec -a "$0" sleep 2147483647'
LOOK_S: Final = 0.02


def install(directory: Path) -> Path:
    """Write `vllm` into that directory; returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    executable = directory / "vllm"
    executable.write_text(f"#!{sys.executable}\n" + CODE.format(what="main"))
    executable.chmod(0o755)
    return executable


def main(words: list[str]) -> int:
    """The command line of vLLM."""
    if words[:1] in (["--version"], ["-v"]) or "--headless" not in words:
        return stock(words)
    core = subprocess.Popen([sys.executable, "-c", CODE.format(what="core"), *words, CORE])
    signal.signal(signal.SIGTERM, lambda number, frame: core.terminate())
    core.wait()
    return 0


def core(words: list[str]) -> int:
    """One engine core."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    held = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: held.set())
    signal.signal(signal.SIGUSR2, lambda *_: held.clear())
    print(f"stub: {' '.join(words)}", flush=True)
    side = Address(
        os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")),
    )
    port = int(words[words.index("--data-parallel-rpc-port") + 1])
    handshake = Address(os.environ.get("VLLM_DP_MASTER_IP", "127.0.0.1"), port)
    store = KvStore()
    with _SideChannel(side, store):
        behaviour = Behaviour(
            step_s=float(os.environ.get("STUB_STEP_S", "0.01")),
            stall=lambda request: held.is_set() and ":-1:" not in request.request_id,
        )
        engine = SlowEngine(handshake.zmq, store, side=side, version="0.32.0", behaviour=behaviour)
        model = ModelProcess() if "mp" in words else None
        lease = Lease(store, lease_of(words))
        while not ended.wait(LOOK_S):
            lease.look(time.monotonic())
            if model is None:
                continue
            state = model.state()
            if state in ("Z", "X"):
                engine.die()
                return 1
            engine.behaviour.frozen = state == "T"
        engine.kill()
    return 0


class SlowEngine(NetworkEngine):
    """As vLLM does, it forgets a request that is aborted while its blocks are being read."""

    def _step(self) -> wire.Outputs | None:
        message = super()._step()
        for request_id in self.running.keys() & set(self.aborted):
            self.running.pop(request_id, None)
        return message


def lease_of(words: list[str]) -> float:
    """What the command line says of how long prefill keeps blocks that nobody reads, in seconds."""
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    return float(config.get("kv_connector_extra_config", {}).get("kv_lease_duration", 30))


class Lease:
    """Gives back what has been held for longer than the lease. (Nobody renews it here.)"""

    def __init__(self, store: KvStore, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._since: dict[str, float] = {}

    def look(self, now: float) -> None:
        """Look at what is held now."""
        held = list(self._store.held)
        self._since = {handle: self._since.get(handle, now) for handle in held}
        for handle, since in self._since.items():
            if now - since > self._lease_s:
                self._store.held.pop(handle, None)


class ModelProcess:
    """What runs the model in vLLM: here it only lives, stops and dies."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["bash", "-c", TITLED, WORKER])

    def state(self) -> str:
        """As in /proc: T is stopped, Z has ended."""
        text = (Path("/proc") / str(self._process.pid) / "stat").read_text()
        return text.rpartition(")")[2].split()[0]
