"""A stock front end with two API servers and the switches, while controllers come, die and are missing.

No engine runs: the controllers of this test answer with tokens of their own choice.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from real.ask import post
from real.conftest import BIN, MODELS, end_group, free_port
from real.processes import environment_of
from vdisagg.control import wire
from vdisagg.control.front import Front
from vdisagg.control.sockets import Sockets
from vdisagg.launch.local import SWITCHES
from vdisagg.plan.model import Address

pytestmark = pytest.mark.real
PATIENCE_S = 300.0
TOKEN = 5000
"""The first token of every answer; the next ones count up from it."""

READY = {
    "max_model_len": 1024,
    "num_gpu_blocks": 256,
    "block_size": 128,
    "dp_stats_address": None,
    "dtype": "float32",
    "vllm_version": "0.32.0",
    "world_size": 1,
    "data_parallel_size": 1,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "data_parallel_rank": 0,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 1024,
    "instance_id": "played",
    "supports_lora": False,
    "max_loras": 0,
}


class Journal:
    """What outlives a controller of this test."""

    def __init__(self) -> None:
        self.received: dict[int, int] = defaultdict(int)
        self.said: dict[int, list[bytes]] = defaultdict(list)
        self.running: dict[str, tuple[int, int, int]] = {}
        """By request: API server, tokens wanted, tokens sent."""
        self.aborted: list[str] = []

    def under_way(self) -> list[tuple[int, int, int]]:
        """What runs now; the controller's thread goes on."""
        return list(self.running.values())


class Controller:
    """Plays the engine in a thread of its own until it dies."""

    def __init__(
        self, handshake: Address, journal: Journal, addresses: wire.Addresses | None = None
    ) -> None:
        self.journal = journal
        self.paused = threading.Event()
        self.resumed: set[int] = set()
        """API servers that have attached."""
        self.faults: list[str] = []
        self.healthy: tuple[bool, str] = (True, "")
        self._dying = threading.Event()
        self._sockets = Sockets()
        self.front = Front(self._sockets, handshake, self)
        if addresses is None:
            self.front.dial(wire.encode(READY))
        else:
            self.front.attach(addresses, [journal.received[api] for api in range(2)])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._dying.is_set():
                self._sockets.turn()
                self.front.health(*self.healthy)
                self.front.tick(time.monotonic())
                if not self.paused.is_set():
                    self._step()
            for _ in range(3):  # journalled, and lost on the way
                self._step(send=False)
        finally:
            self._sockets.close()

    def _step(self, *, send: bool = True) -> None:
        """One more token for every request."""
        for request, (api, wanted, sent) in list(self.journal.running.items()):
            last = sent + 1 == wanted
            output = wire.Output(
                request, [TOKEN + sent], finish_reason=wire.LENGTH if last else None
            )
            self._say(api, wire.Outputs(outputs=[output], timestamp=time.monotonic()), send=send)
            if last:
                del self.journal.running[request]
            else:
                self.journal.running[request] = (api, wanted, sent + 1)

    def _say(self, api: int, message: wire.Outputs, *, send: bool = True) -> None:
        said = self.journal.said[api]
        said.append(wire.encode(message))
        if send:
            self.front.send(api, said[-1], seq=len(said))

    def die(self) -> None:
        self._dying.set()
        self._thread.join()

    def front_attached(self, api_servers: int) -> None:
        assert api_servers == 2

    def front_message(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes]) -> None:
        self.journal.received[api] += 1
        if kind == wire.ADD:
            request = wire.decode_add(payload)
            assert request.sampling_params
            wanted = request.sampling_params.get("max_tokens", 16)
            self.journal.running[request.request_id] = (api, wanted, 0)
        elif kind == wire.ABORT:
            for name in wire.decode_ids(payload):
                self.journal.aborted.append(name)
                self.journal.running.pop(name, None)
        else:
            _, call_id, method, _ = wire.decode_utility(payload)
            result = ["generate"] if method == "get_supported_tasks" else None
            answer = wire.UtilityOutput(call_id, None, wire.raw((None, result)))
            self._say(api, wire.Outputs(utility_output=answer))

    def front_resumed(self, api: int, last: int) -> None:
        self.resumed.add(api)
        for seq, payload in enumerate(self.journal.said[api][last:], last + 1):
            self.front.send(api, payload, seq=seq)

    def front_fault(self, reason: str) -> None:
        self.faults.append(reason)

    def front_lost(self) -> None:
        self.faults.append("lost")


class Scene:
    """The front end, and whichever controller plays its engine."""

    def __init__(self, directory: Path) -> None:
        self.handshake = Address("127.0.0.1", free_port())
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.journal = Journal()
        self.log = directory / "front.log"
        words = [
            *(str(BIN / "vllm"), "serve", str(MODELS / "tiny"), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", "1024"),
            *("--data-parallel-size-local", "0", "--api-server-count", "2"),
            *("--data-parallel-address", self.handshake.host),
            *("--data-parallel-rpc-port", str(self.handshake.port)),
            *("--middleware", "vdisagg_ids.RequestIds", "--middleware", "vdisagg_health.Health"),
            *("--dtype", "float32"),
        ]
        env = environment_of(directory) | {
            "PYTHONPATH": str(SWITCHES),
            "VDISAGG_CHANNEL": "1",
            "VLLM_API_KEY": "secret",
        }
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                words, env=env, stdout=log, stderr=log, start_new_session=True
            )
        self.asking = ThreadPoolExecutor(64)
        self.controller = Controller(self.handshake, self.journal)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            assert self.controller.faults == []
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def successor(self) -> Controller:
        """A new controller in the dead one's place."""
        addresses = self.controller.front.addresses
        assert addresses
        self.controller = Controller(self.handshake, self.journal, addresses)
        return self.controller

    def health(self) -> tuple[int, str]:
        """Status and body of /health, asked for without an API key; 0 while nobody listens."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def health_is(self, status: int) -> set[str]:
        """Wait until eight answers in a row have that status; their bodies. Any API server may give them."""
        said: list[tuple[int, str]] = []

        def all_say() -> bool:
            said[:] = [self.health() for _ in range(8)]
            return {code for code, _ in said} == {status}

        self.until(all_say)
        return {body for _, body in said}

    def ask(self, tokens: int) -> Future[list[int] | int]:
        """The token ids of an answer of so many, or the code of the error."""
        return self.asking.submit(self._ask, tokens)

    def _ask(self, tokens: int) -> list[int] | int:
        body = {
            "model": "tiny",
            "prompt": [1, 2, 3],
            "max_tokens": tokens,
            "stream": True,
            "return_token_ids": True,
            "temperature": 0,
        }
        connection = self.post(body)
        with contextlib.closing(connection), connection.getresponse() as response:
            if response.status != 200:
                return int(response.status)
            lines = response.read().decode().splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        if "error" in chunks[-1]:
            return int(chunks[-1]["error"]["code"])
        return [t for c in chunks if c["choices"] for t in c["choices"][0].get("token_ids") or []]

    def post(self, body: dict[str, Any]) -> http.client.HTTPConnection:
        """A connection on which the answer will come."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer secret"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection

    def close(self) -> None:
        self.controller.die()
        end_group(self._process)
        self.asking.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("front"))
    try:
        scene.until(lambda: scene.log.read_text().count("Application startup complete") == 2)
        scene.until(lambda: scene.health()[0] == 200)  # it listens a moment after it has said so
        yield scene
    finally:
        scene.close()


def answer(tokens: int) -> list[int]:
    return list(range(TOKEN, TOKEN + tokens))


def test_streams_go_on_with_the_next_controller_and_miss_no_token(scene: Scene) -> None:
    scene.controller.paused.set()
    asked: list[Future[list[int] | int]] = []
    # The kernel deals connections out, to both API servers in the long run.
    while len(asked) < 8 or len({api for api, _, _ in scene.journal.under_way()}) < 2:
        asked.append(scene.ask(200 + len(asked)))
        scene.until(lambda: len(scene.journal.running) == len(asked))
    streams = len(asked)
    for _ in range(3):
        scene.controller.paused.clear()
        scene.until(lambda: all(sent > 20 for _, _, sent in scene.journal.under_way()))
        scene.controller.die()
        asked.append(scene.ask(30))  # comes while nobody is there
        scene.successor()
    for n in range(streams):
        assert asked[n].result(60) == answer(200 + n)
    for late in asked[streams:]:
        assert late.result(60) == answer(30)


def test_a_client_that_leaves_between_two_controllers_is_aborted_by_the_second(
    scene: Scene,
) -> None:
    scene.controller.paused.set()
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 500, "stream": True}
    with contextlib.closing(scene.post(body)):
        scene.until(lambda: scene.journal.running)
        (name,) = scene.journal.running
        scene.controller.die()
    successor = scene.successor()
    scene.until(lambda: name in scene.journal.aborted)
    successor.paused.clear()
    assert scene.ask(5).result(60) == answer(5)


def test_without_a_controller_requests_fail_and_later_ones_succeed_again(scene: Scene) -> None:
    scene.controller.die()
    failed = [scene.ask(5) for _ in range(4)]
    assert [f.result(60) for f in failed] == [500] * 4
    for said in scene.health_is(503):
        assert "said nothing" in json.loads(said)["reason"]
    successor = scene.successor()
    scene.until(lambda: successor.resumed == {0, 1})
    scene.health_is(200)
    assert scene.ask(5).result(60) == answer(5)


def test_health_says_why_nothing_works_and_asks_for_no_key(scene: Scene) -> None:
    scene.controller.healthy = (False, "no link works")
    for said in scene.health_is(503):
        assert json.loads(said) == {"status": "unhealthy", "reason": "no link works"}
    assert post(scene.url, "/v1/completions", {})[0] == 401
    scene.controller.healthy = (True, "")
    scene.health_is(200)
