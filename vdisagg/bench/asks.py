"""One request of a load before it is sent: what it asks, and when, where its data set says so."""

from __future__ import annotations

from typing import Final

import msgspec

MOST_REQUESTS: Final = 1_000_000
"""Of one run: all are made before the first is sent, and held."""


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


Prompt = list[int] | str | list[Message]
"""Token ids or text for a completion, messages for a chat."""


class Ask(msgspec.Struct, frozen=True):
    """What one request asks for."""

    prompt: Prompt
    output_len: int | None
    """Exactly so many tokens; None: as many as the model likes."""
    due_s: float | None = None
    """Seconds after the load's start, where the data set is a trace with a clock of its own."""
