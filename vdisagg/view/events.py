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
    return "\n".join(
        f"{datetime.fromtimestamp(event.at).astimezone():%F %T}  {event.subject}: {event.what}"
        for event in events
    )


def events_json(events: Sequence[Event]) -> str:
    """The same for programs: a JSON list, times in Unix seconds."""
    return msgspec.json.format(msgspec.json.encode(list(events))).decode()
