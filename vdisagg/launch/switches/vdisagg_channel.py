"""One API server's end of its channel to the controller: nothing lost, nothing twice, whoever plays it.

Bytes in, bytes out; no socket, no clock. `vdisagg_sockets` joins it to pyzmq. The controller's end is
vdisagg/control/channel.py and front.py; docs/vllm-protocol.md describes what both say.

Towards the controller each message gets a number behind it and is kept, so that it can be sent again to
a controller that has not seen it. What comes from the controller is passed on in the order of its numbers:
once, and with no gap. A message that may not be passed on leaves None; vLLM gets EMPTY_OUTPUTS then.

The standard library only: this is loaded by stock processes.
"""

from __future__ import annotations

import json
import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IDENTITY = b"\0\0"
"""The ZeroMQ identity of the one engine that the controller plays."""

NUMBERED = b"\x00vdisagg"
CONTROL = b"\x01vdisagg"
"""How a last frame of ours begins: a number (64 bits, little-endian), or a control message (JSON)."""

ANSWER = b"\x7f"
"""The kind of our own messages to the controller; vLLM's are small numbers."""

ABORT = b"\x01"

EMPTY_OUTPUTS = b"\x90"
"""An EngineCoreOutputs with all its defaults, for any vLLM: it says nothing and is ignored."""

ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"
"""vLLM's death notice: it ends all requests in an error, and the process."""

KEPT_MESSAGES = 4096
KEPT_BYTES = 64 << 20
"""How much is kept to be sent again: several seconds of requests. The oldest go first."""

WAIT_S = 10.0
"""How long a message waits for a controller; a restart takes about one second, on a crowded machine several."""

RETRY_S = 0.005
ASK_S = 0.5
"""At most so often is the controller asked to send again."""

SILENCE_S = 5.0
"""So long may the controller say nothing of its health, which it does about once a second."""


class Health(NamedTuple):
    """What the controller said last."""

    ok: bool
    reason: str
    at: float


class Channel:
    """What has been sent, what has come. Times are seconds of any monotonic clock."""

    def __init__(self, *, most: int = KEPT_MESSAGES, most_bytes: int = KEPT_BYTES) -> None:
        self.health: Health | None = None
        self.sent = 0
        """The number of the last message towards the controller."""
        self.passed_on = 0
        """The number of the last outputs message that has been passed on to vLLM."""
        self._most = most
        self._most_bytes = most_bytes
        self._kept: deque[tuple[int, list[bytes]]] = deque()
        self._kept_bytes = 0
        self._given_up = False
        self._holed = False
        self._next_ask = -math.inf

    def send(
        self,
        frames: Sequence[Any],
        post: Callable[[Sequence[Any]], bool],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> bool:
        """Send [identity, kind, payload, …] through `post`, which says whether a controller was there.

        While none is, this waits; after WAIT_S in vain it returns False, and so does each later call
        at once, until one succeeds or a controller attaches. The message then has no number: it never
        was. Only an abort is always taken, and goes to whoever attaches next: its client has left and
        won't say so again, and vLLM's output handler would end with an exception here.
        """
        numbered = [*frames, NUMBERED + (self.sent + 1).to_bytes(8, "little")]
        deadline = clock() + (0.0 if self._given_up else WAIT_S)
        while not post(numbered):
            if bytes(frames[1]) == ABORT:
                break
            if clock() >= deadline:
                self._given_up = True
                return False
            sleep(RETRY_S)
        else:
            self._given_up = False
        self._keep([bytes(frame) for frame in numbered])
        return True

    def take(
        self, frames: Sequence[Any], *, now: float
    ) -> tuple[Sequence[Any] | None, list[list[bytes]]]:
        """What vLLM gets of a message (None: nothing), and what is to be sent to the controller.

        Frames are bytes or zmq.Frame. Messages without a last frame of ours are passed on. When the
        controller no longer has what is missing, vLLM gets a death notice: answers with a hole in
        them would look like good ones.
        """
        mark = bytes(memoryview(frames[-1])[: len(NUMBERED)]) if len(frames) > 1 else b""
        if mark == CONTROL:
            answers = self._obey(bytes(frames[-1])[len(CONTROL) :], now)
            return ([ENGINE_CORE_DEAD] if self._holed else None), answers
        if mark != NUMBERED:
            return frames, []
        number = int.from_bytes(memoryview(frames[-1])[len(NUMBERED) :], "little")
        if number == self.passed_on + 1:
            self.passed_on = number
            return frames[:-1], []
        return None, self._ask(now) if number > self.passed_on else []

    def unhealthy(self, *, now: float) -> str | None:
        """Why this API server should get no requests; None when all is well.

        A controller that has never said anything is not missed.
        """
        if self.health is None:
            return None
        if now - self.health.at > SILENCE_S:
            return f"the controller has said nothing for {now - self.health.at:.0f} s"
        if self._given_up:
            return "no controller takes requests yet"
        return None if self.health.ok else self.health.reason

    def _keep(self, message: list[bytes]) -> None:
        self.sent += 1
        self._kept.append((self.sent, message))
        self._kept_bytes += sum(map(len, message))
        while len(self._kept) > self._most or self._kept_bytes > self._most_bytes:
            _, oldest = self._kept.popleft()
            self._kept_bytes -= sum(map(len, oldest))

    def _obey(self, text: bytes, now: float) -> list[list[bytes]]:
        """A control message; what can't be understood is not for us."""
        try:
            said = json.loads(text)
            health, attach = said.get("health"), said.get("attach")
            if health is not None:
                self.health = Health(bool(health["ok"]), str(health["reason"]), now)
            if attach is not None:
                return self._attached(int(attach["received"]))
            self._holed = self._holed or int(said.get("first", 0)) > self.passed_on + 1
            if int(said.get("sent", 0)) > self.passed_on:
                return self._ask(now)
        except (ValueError, TypeError, KeyError, AttributeError):
            return []
        return [self._answer()]

    def _attached(self, received: int) -> list[list[bytes]]:
        """Somebody plays the engine who has seen our messages up to the number `received`."""
        self._given_up = False
        again = [(number, message) for number, message in self._kept if number > received]
        first = again[0][0] if again else self.sent + 1
        return [self._answer(first=first, resend=True), *(message for _, message in again)]

    def _ask(self, now: float) -> list[list[bytes]]:
        """Outputs are missing: have them sent again from the first that has not come."""
        if now < self._next_ask:
            return []
        self._next_ask = now + ASK_S
        return [self._answer(resend=True)]

    def _answer(self, **more: object) -> list[bytes]:
        said = {"last": self.passed_on, "sent": self.sent, **more}
        return [IDENTITY, ANSWER, json.dumps(said).encode()]
