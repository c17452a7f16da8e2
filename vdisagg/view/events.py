"""How `vdisagg events` looks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vdisagg.cluster.admin import Event


def events_text(events: Sequence[Event]) -> str:
    """One line for each, in local time."""
    return "\n".join(event_line(event) for event in events)


def event_line(event: Event, *, as_json: bool = False) -> str:
    """One line, in local time; or a JSON object, its time in Unix seconds."""
    if as_json:
        return msgspec.json.encode(event).decode()
    what = " ".join(event.what.splitlines())  # a reason may come from elsewhere
    return f"{datetime.fromtimestamp(event.at).astimezone():%F %T}  {event.subject}: {what}"


def events_json(events: Sequence[Event]) -> str:
    """The same for programs: a JSON list."""
    return msgspec.json.format(msgspec.json.encode(list(events))).decode()
