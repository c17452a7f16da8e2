"""What we add to vLLM's messages to and from the front end, so that none is lost or taken twice.

The other end is launch/switches/vdisagg_channel.py, in each API server's process. Numbers count per API
server and direction, from 1, since the front end's process began; a number is a last frame of its own.

The words between the ends are JSON, since the other end has only the standard library:

- a Control goes to an API server behind EMPTY_OUTPUTS. "attach" asks for all messages with a number
  above `received`; "health" is for its /health; `sent` is the number of our last outputs message, and
  `first` that of the first one that we still have, where it has to know.
- an Answer comes of the kind ANSWER: to an attach with `first`, the number of the first message that
  follows; with `resend` where we are to send again what comes after `last`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vdisagg.errors import ProtocolError

NUMBERED: Final = b"\x00vdisagg"
CONTROL: Final = b"\x01vdisagg"
"""How a last frame of ours begins."""

ANSWER: Final = b"\x7f"
"""The kind of an Answer; vLLM's kinds are small numbers."""

EMPTY_OUTPUTS: Final = b"\x90"
"""An EngineCoreOutputs with all its defaults: vLLM ignores it."""


class Attach(msgspec.Struct, frozen=True):
    """We play the engine (again)."""

    received: int
    """The number of the last message that we have seen."""


class Health(msgspec.Struct, frozen=True):
    """Whether requests can be served; if not, why."""

    ok: bool
    reason: str = ""


class Control(msgspec.Struct, frozen=True, omit_defaults=True):
    """From us to an API server."""

    attach: Attach | None = None
    health: Health | None = None
    sent: int = 0
    first: int = 0


class Answer(msgspec.Struct, frozen=True):
    """From an API server to us."""

    last: int
    """The number of the last outputs message that vLLM has got."""
    sent: int
    """The number of the last message to us."""
    first: int | None = None
    resend: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Answer).decode


def number_frame(number: int) -> bytes:
    """The last frame of a message with this number."""
    return NUMBERED + number.to_bytes(8, "little")


def take_number(frames: list[bytes]) -> int | None:
    """Remove the number from behind a message's frames; None where there is none."""
    if not frames or len(frames[-1]) != len(NUMBERED) + 8 or not frames[-1].startswith(NUMBERED):
        return None
    return int.from_bytes(frames.pop()[len(NUMBERED) :], "little")


def control(said: Control) -> list[bytes]:
    """The frames of a control message."""
    return [EMPTY_OUTPUTS, CONTROL + _encode(said)]


def decode_answer(payload: bytes) -> Answer:
    """Raises ProtocolError."""
    try:
        return _decode(payload)
    except msgspec.DecodeError as exc:
        raise ProtocolError(f"an answer of the switches is not what ours say: {exc}") from exc
