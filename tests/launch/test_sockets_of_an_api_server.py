"""The channel joined to pyzmq in a process of its own, as in an API server; controllers come and go."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from vdisagg.control import wire
from vdisagg.control.front import Front
from vdisagg.control.sockets import Sockets
from vdisagg.launch.local import SWITCHES
from vdisagg.plan.model import Address

PATIENCE_S = 20.0

# As vLLM's AsyncMPClient: the same sockets, calls and flags. Reads commands, and prints JSON.
API_SERVER = """
import asyncio, json, sys
import zmq, zmq.asyncio
import vdisagg_channel, vdisagg_health
vdisagg_channel.WAIT_S = 60.0
context = zmq.asyncio.Context(zmq.Context(io_threads=2))
router, pull = context.socket(zmq.ROUTER), context.socket(zmq.PULL)
for socket in (router, pull):
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind("tcp://127.0.0.1:*")
router.setsockopt(zmq.SNDHWM, 0)
where = [s.getsockopt(zmq.LAST_ENDPOINT).decode() for s in (router, pull)]
taken, empty = [], 0

def say(thing):
    print(json.dumps(thing), flush=True)

async def receive():
    global empty
    while True:
        frames = await pull.recv_multipart(copy=False)
        if frames[0].buffer == vdisagg_channel.EMPTY_OUTPUTS:
            empty += 1
        else:
            assert len(frames) == 2 and frames[1].buffer == b"tensor" * 4000, len(frames)
            taken.append(int(frames[0].bytes))

async def send(kind, number):
    payload = str(number).encode()
    try:
        await router.send_multipart((b"\\0\\0", kind, payload, memoryview(b"tensor" * 4000)), copy=False)
    except zmq.ZMQError as exc:
        return str(exc)

async def healthy(scope, receive, send):
    await send({"status": 200})

async def health():
    sent = []
    async def note(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": "/health"}
    await vdisagg_health.Health(healthy)(scope, None, note)
    return sent[0]["status"], sent[-1].get("body", b"").decode()

async def main():
    reading = asyncio.create_task(receive())
    say(where)
    while True:
        word, *numbers = (await asyncio.to_thread(sys.stdin.readline)).split() or ["end"]
        numbers = list(map(int, numbers))
        if word == "add":
            say([await send(b"\\0", number) for number in range(*numbers)])
        elif word == "abort":
            say(await send(b"\\1", *numbers))
        elif word == "taken":
            say([taken, empty])
        elif word == "wait_ms":
            vdisagg_channel.WAIT_S = numbers[0] / 1000
            say(numbers)
        elif word == "health":
            say(await health())
        else:
            reading.cancel()
            context.destroy(linger=0)
            return

asyncio.run(main())
"""


class ApiServer:
    """The process, commanded a line at a time."""

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("VDISAGG_")}
        environment |= {"PYTHONPATH": str(SWITCHES), "VDISAGG_CHANNEL": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", API_SERVER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        where_in, where_out = self.answer()
        self.addresses = wire.Addresses([where_in], [where_out])

    def command(self, *words: object) -> None:
        assert self._process.stdin
        print(*words, file=self._process.stdin, flush=True)

    def answer(self) -> list[Any]:
        assert self._process.stdout
        answer: list[Any] = msgspec.json.decode(self._process.stdout.readline())
        return answer

    def ask(self, *words: object) -> list[Any]:
        self.command(*words)
        return self.answer()

    def close(self) -> None:
        self._process.communicate("end\n", timeout=10)
        assert self._process.returncode == 0


class Playing:
    """A controller, as far as its front end sees: what it has been sent, and what it says."""

    def __init__(self, addresses: wire.Addresses, *, seen: list[int], said: list[int]) -> None:
        """`seen` and `said` are the journal, which outlives it."""
        self.seen = seen
        self.said = said
        self.resumed = False
        self.kinds: list[bytes] = []
        self._sockets = Sockets()
        self.front = Front(self._sockets, Address("127.0.0.1", 1), self)
        self.front.attach(addresses, [len(seen)])

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            self._sockets.turn()
            self.front.tick(time.monotonic())

    def say(self, number: int) -> None:
        """Outputs message `number`, journalled first."""
        self.said.append(number)
        self._send(number)

    def _send(self, number: int) -> None:
        self.front.send(0, b"%d" % number, [b"tensor" * 4000], seq=number)

    def die(self) -> None:
        """Everything that lies in its sockets is lost."""
        self._sockets.close()

    def front_attached(self, api_servers: int) -> None:
        assert api_servers == 1

    def front_message(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes]) -> None:
        assert kind == wire.ABORT or frames == [b"tensor" * 4000]
        self.kinds.append(kind)
        self.seen.append(int(payload))

    def front_resumed(self, api: int, last: int) -> None:
        self.resumed = True
        for number in self.said[
            max(0, last - 20) :
        ]:  # more than was asked for: it has to be told apart
            self._send(number)

    def front_fault(self, reason: str) -> None:
        raise AssertionError(reason)

    def front_lost(self) -> None:
        raise AssertionError("the front end lives")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


def test_controllers_die_and_nothing_is_lost_or_doubled_either_way(server: ApiServer) -> None:
    seen: list[int] = []
    said: list[int] = []

    def generation(first: int) -> Playing:
        """Messages `first` to `first + 99` one way, and some the other; not all arrive with this one."""
        controller = Playing(server.addresses, seen=seen, said=said)
        server.command("add", first, first + 100)
        controller.until(lambda: controller.resumed and len(seen) > first + 40)
        for _ in range(150):
            controller.say(len(said) + 1)
        assert server.answer() == [None] * 100, "all are sent, to it or into its sockets"
        return controller

    for first in (1, 101, 201):
        generation(first).die()
    last = generation(301)
    last.until(lambda: len(seen) == 400 and server.ask("taken")[0] == said)
    assert seen == list(range(1, 401))
    last.die()


def test_a_message_sent_between_two_controllers_waits_for_the_second(server: ApiServer) -> None:
    seen: list[int] = []
    first = Playing(server.addresses, seen=seen, said=[])
    server.command("add", 1, 2)
    first.until(lambda: seen == [1])
    assert server.answer() == [None]
    first.die()
    server.command("add", 2, 4)
    second = Playing(server.addresses, seen=seen, said=[])
    second.until(lambda: seen == [1, 2, 3])
    assert server.answer() == [None, None]
    second.die()


def test_without_a_controller_requests_fail_and_aborts_are_kept(server: ApiServer) -> None:
    failure = "no vdisagg controller is connected"
    server.ask("wait_ms", 500)
    assert server.ask("add", 1, 4) == [failure] * 3
    server.ask("wait_ms", 60_000)
    assert server.ask("abort", 1) is None
    controller = Playing(server.addresses, seen=[], said=[])
    controller.until(lambda: controller.seen == [1])
    assert controller.kinds == [wire.ABORT]
    server.command("add", 2, 3)
    controller.until(lambda: controller.seen == [1, 2])
    assert server.answer() == [None]
    controller.die()


def test_health_is_what_the_controller_says(server: ApiServer) -> None:
    assert server.ask("health") == [200, ""]
    controller = Playing(server.addresses, seen=[], said=[])
    controller.front.health(False, "no link works")
    controller.until(lambda: server.ask("health")[0] == 503)
    _, body = server.ask("health")
    assert msgspec.json.decode(str(body)) == {"status": "unhealthy", "reason": "no link works"}
    controller.front.health(True)
    controller.until(lambda: server.ask("health")[0] == 200)
    assert server.ask("taken")[0] == []
    controller.die()
