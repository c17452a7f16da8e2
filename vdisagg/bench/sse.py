"""Server-sent events out of bytes, however the network has cut them."""

from __future__ import annotations


class EventStream:
    """Feed it what was read; it gives back the data of each event that is now whole.

    Comments and fields other than `data` are skipped, as the HTML standard's section on
    server-sent events has it; \\n, \\r\\n and \\r all end a line.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, read: bytes) -> list[bytes]:
        """Data of the events that `read` completes, in order. An event without data gives none."""
        pending = self._rest + read
        if b"\r" in pending:
            # A last \r may be half of a \r\n: it waits for the next read.
            tail = b"\r" if pending.endswith(b"\r") else b""
            whole = pending.removesuffix(b"\r") if tail else pending
            pending = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail
        *events, self._rest = pending.split(b"\n\n")
        return [data for event in events if (data := _data(event))]


def _data(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:  # nearly all of them
        return event[6:]
    lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
