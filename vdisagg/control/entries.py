"""The journal's entries as bytes, and a file of them read back.

An entry is a head, the sizes of its parts, and the parts. What a killed process left half written is a
beginning of an entry at the end of the file; reading stops in front of it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

INPUT: Final = b"I"
"""A message of an API server; its parts are as they came: kind, payload, further frames."""

OUTPUT: Final = b"O"
"""A message to an API server: payload, further frames."""

LIVE: Final = b"L"
"""What was live when the file was begun: one part, a recall.Recalled in msgpack."""

LEGS: Final = b"G"
"""What becomes of prefill legs: one part, a list of ledger.Note in msgpack."""

_KINDS: Final = frozenset((INPUT, OUTPUT, LIVE, LEGS))

_HEAD: Final = struct.Struct("<cIQI")
"""What it is, the API server's index, its number (from 1 for each API server and direction), and
how many parts there are."""

_SIZE: Final = 8  # bytes: uint64, since a frame may be a tensor


class Entry(NamedTuple):
    """One entry; `number` is 0 for LIVE and LEGS."""

    what: bytes
    api: int
    number: int
    parts: list[bytes]


def head(what: bytes, api: int, number: int, parts: Sequence[bytes]) -> bytes:
    """What stands in front of an entry's parts."""
    count = len(parts)
    return _whole_head(count).pack(what, api, number, count, *map(len, parts))


@lru_cache
def _whole_head(parts: int) -> struct.Struct:
    """_HEAD, and the sizes of so many parts."""
    return struct.Struct(f"{_HEAD.format}{parts}Q")


def read(path: Path, start: int = 0) -> Iterator[tuple[int, Entry]]:
    """The whole entries of a file from byte `start` on, each with the position of its end.

    It ends at the end of the file, or in front of what is no whole entry.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if start + _HEAD.size > size:
            return
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as data:
            yield from _entries(data, start, size)


def _entries(data: mmap.mmap, at: int, size: int) -> Iterator[tuple[int, Entry]]:
    while at + _HEAD.size <= size:
        what, api, number, count = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if what not in _KINDS or at + count * _SIZE > size:
            return
        sizes = struct.unpack_from(f"<{count}Q", data, at)
        at += count * _SIZE
        if at + sum(sizes) > size:
            return
        parts = []
        for part in sizes:
            parts.append(data[at : at + part])
            at += part
        yield at, Entry(what, api, number, parts)
