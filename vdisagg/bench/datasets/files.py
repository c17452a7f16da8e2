"""A data set's file as its entries with their lines, and which of the known forms they have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from vdisagg.errors import UsageError

Form = Literal["conversations", "trace"]

EXPECTED = (
    'expected are conversations, as {"conversations": [{"from": "human", "value": ...}, ...]} or '
    '{"messages": [{"role": "user", "content": ...}, ...]}, or a trace, as {"timestamp": '
    '(milliseconds), "input_length": ..., "output_length": ..., "hash_ids": [...]}'
)


class Entry(msgspec.Struct, frozen=True):
    """One request's JSON, not yet looked into."""

    line: int
    """Where it begins, from 1."""
    raw: bytes


def read(path: Path) -> tuple[Form, list[Entry]]:
    """All entries of a JSON array, or of a file with one JSON object a line; blank lines are skipped.

    The first entry says which form the file has. Raises UsageError naming file and line.
    """
    try:
        text = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{path}: can't be read: {exc.strerror}") from exc
    text = text.removeprefix(b"\xef\xbb\xbf")
    entries = list(_array(path, text) if text.lstrip().startswith(b"[") else _lines(text))
    if not entries:
        raise UsageError(f"{path}: holds no entries; {EXPECTED}")
    return _form(path, entries[0]), entries


def _lines(text: bytes) -> Iterator[Entry]:
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield Entry(number, line)


def _array(path: Path, text: bytes) -> Iterator[Entry]:
    try:
        raws = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path}: not a JSON array: {exc}; {EXPECTED}") from exc
    at, line = 0, 1
    for raw in raws:
        entry = bytes(raw)
        begin = text.index(entry, at)
        line += text.count(b"\n", at, begin)
        yield Entry(line, entry)
        line += entry.count(b"\n")
        at = begin + len(entry)


def _form(path: Path, entry: Entry) -> Form:
    try:
        keys = msgspec.json.decode(entry.raw, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path}:{entry.line}: not a JSON object: {exc}; {EXPECTED}") from exc
    if keys & {"conversations", "messages"}:
        return "conversations"
    if {"timestamp", "input_length"} <= keys:
        return "trace"
    has = ", ".join(keys) or "nothing"
    raise UsageError(f"{path}:{entry.line}: of no known form, it has {has}; {EXPECTED}")
