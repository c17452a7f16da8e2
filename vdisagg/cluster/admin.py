"""The admin API's messages and its client: one JSON line each way over a Unix socket.

The controller serves it (control/admin_socket.py). A request is `{"op": NAME, …}`, with what Request
has beside; the answer is `{"ok": true, …}` or `{"ok": false, "error": TEXT}`.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from vdisagg.errors import ControllerGone

SOCKET_NAME = "admin.sock"
OPERATIONS = ("status", "events", "timings", "probe", "refresh")

InstanceState = Literal[
    "planned", "launching", "connected", "ready", "suspect", "dead", "draining", "stopped"
]
LinkState = Literal["cold", "probing", "warm", "stale", "down"]
FrontState = Literal["waiting", "attached", "silent", "gone"]


class InstanceStatus(msgspec.Struct):
    """One engine as the controller sees it."""

    name: str
    role: str
    state: InstanceState
    since: float
    """Unix time of the last change of state."""
    reason: str = ""
    in_flight: int = 0
    """Legs that the controller has sent and that have not finished."""
    running: int = 0
    waiting: int = 0
    """From the engine's own last scheduler statistics."""
    kv_blocks_used: int = 0
    """From the engine's last scheduler statistics: kv_cache_usage times the number of blocks."""
    kv_blocks: int = 0
    block_size: int = 0
    max_model_len: int = 0
    vllm_version: str = ""
    kv_transfers: int = 0
    """Transfers that the engine's connector statistics have reported (decode side)."""
    kv_failures: int = 0
    """Transfers, notifications and handshakes that its connector has reported as failed."""
    kv_expiries: int = 0
    """Leases of its KV blocks that ran out before anybody read them (prefill side)."""
    generation: int = 1
    stats_at: float | None = None
    """Unix time of those statistics. An idle engine sends none: `refresh` makes it."""
    heard_at: float | None = None
    """Unix time of its last message of any kind."""


class LinkStatus(msgspec.Struct):
    """One prefill→decode pair."""

    prefill: str
    decode: str
    state: LinkState
    transfers: int = 0
    last_beat: float | None = None
    """Unix time of the last success, user request or probe."""
    latency_s: float | None = None
    mismatches: int = 0
    """Requests and probes whose tokens were not the same at both ends, or not decode's own."""
    since: float = 0.0
    """Unix time of the last change of state."""
    missed: int = 0
    """Probes in a row that have failed or took too long."""
    failures: int = 0
    """Users' requests and probes that have failed on it, since the controller started."""
    proofs: int = 0
    """Of a link that is down: proofs in a row that it has passed."""
    reason: str = ""


class Totals(msgspec.Struct):
    """Users' requests since the controller started; probes are not counted."""

    received: int = 0
    in_flight: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    redone: int = 0
    """Begun again elsewhere, nothing having been sent yet."""
    continued: int = 0
    """Answers that went on on another engine."""
    alone: int = 0
    """Prompts that decode engines computed, no prefill engine being left."""
    colocated: int = 0
    """Those that asked for one engine alone, prefill or decode, to compute them whole."""
    output_tokens: int = 0
    handles_held: int = 0
    """KV hand-overs that prefill still holds blocks for and that nobody has read or released."""


class ControllerStatus(msgspec.Struct):
    """The answer to `status`."""

    pid: int
    started: float
    front_end: FrontState
    instances: list[InstanceStatus]
    links: list[LinkStatus]
    totals: Totals
    ok: bool = True


class Request(msgspec.Struct, omit_defaults=True):
    """What is asked."""

    op: str
    after: int = 0
    """For `events` and `timings`: only those with higher numbers."""


class Event(msgspec.Struct):
    """Something that happened, for people."""

    at: float
    """Unix time."""
    subject: str
    what: str
    number: int = 0
    """They are numbered from 1 on, over the lives of controllers."""


class Events(msgspec.Struct):
    """The answer to `events`: the last ones, or those after a number."""

    events: list[Event]
    last: int = 0
    """The highest number there is. Lower than one seen before: the history has begun anew."""
    ok: bool = True


class Timing(msgspec.Struct, omit_defaults=True, gc=False):
    """When what happened to a user's request that has finished, by the controller's clock."""

    number: int
    """They are numbered from 1 on, over the life of one controller."""
    request: str
    """The front end's id."""
    received: float
    """Unix time. The instants below count seconds from it."""
    decode: str
    """The instance that answered."""
    sent_s: float
    """When its first leg was sent."""
    first_s: float
    """The first output of the leg that answers; prefill's token may have gone to the client before."""
    end_s: float
    prefill: str = ""
    """The instance that computed the prompt for the other; empty: none did."""
    prefilled_s: float | None = None
    """When prefill's output came; the decode leg is sent in the same turn."""
    engine_queue_s: float | None = None
    """How long it waited in the first leg's engine, by that engine's clock; None: it did not say."""


class Timings(msgspec.Struct):
    """The answer to `timings`: those after a number, no more than fit on a line; ask again after the last."""

    timings: list[Timing]
    last: int = 0
    """The highest number there is."""
    dropped: int = 0
    """How many after the number asked for are not kept any more."""
    started: float = 0.0
    """Unix time at which the controller began to count: another one counts anew."""
    ok: bool = True


class Done(msgspec.Struct):
    """The answer to `probe` (every link's next probe is due now) and `refresh` (every engine has been
    sent a dummy request, so that its statistics will be fresh). What comes of it shows in `status`."""

    ok: Literal[True] = True


class Refused(msgspec.Struct):
    """An answer that is no answer."""

    error: str
    ok: bool = False


Answer = TypeVar("Answer", ControllerStatus, Events, Timings, Done)


def socket_address(directory: Path) -> tuple[str, int]:
    """A path for the admin socket that fits sun_path (108 bytes), however deep `directory` is.

    Returns the path and the directory descriptor that it goes through; the caller closes it.
    """
    descriptor = os.open(directory, os.O_DIRECTORY | os.O_PATH)
    return f"/proc/self/fd/{descriptor}/{SOCKET_NAME}", descriptor


def ask(
    directory: Path, answer: type[Answer], op: str, *, after: int = 0, timeout_s: float = 5.0
) -> Answer:
    """Send one request to the controller of the cluster whose state is in `directory`.

    Raises ControllerGone when nothing answers, or answers with a refusal, within `timeout_s`.
    """
    try:
        line = exchange(directory, request(op, after=after), timeout_s=timeout_s)
    except OSError as exc:
        raise ControllerGone(
            f"the controller does not answer on {directory}/{SOCKET_NAME}: {exc}"
        ) from exc
    return parse(line, answer, op)


def exchange(directory: Path, line: bytes, *, timeout_s: float) -> bytes:
    """Send one line to the socket in `directory`; the line that comes back. Raises OSError."""
    path, descriptor = socket_address(directory)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            connection.sendall(line)
            with connection.makefile("rb") as lines:
                return lines.readline()
    finally:
        os.close(descriptor)


def request(op: str, *, after: int = 0) -> bytes:
    """A request as it goes over the socket."""
    return msgspec.json.encode(Request(op, after)) + b"\n"


def parse(line: bytes, answer: type[Answer], op: str) -> Answer:
    """What came back. Raises ControllerGone for what is no answer, or a refusal."""
    try:
        return msgspec.json.decode(line, type=answer)
    except msgspec.DecodeError as exc:
        raise ControllerGone(f"the controller answered {op!r} with {line[:200]!r}") from exc
