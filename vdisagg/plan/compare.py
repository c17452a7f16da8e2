"""What changed between two resolved topologies, in the words of the file."""

from __future__ import annotations

import json
from collections.abc import Mapping

_ABSENT = object()


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Lines such as `decode.count: 1 → 2`, in the file's order of keys; empty where none differs."""
    return _maps("", old, new)


def _maps(path: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    keys = dict.fromkeys((*old, *new))
    return [
        line
        for key in keys
        for line in _values(
            f"{path}.{key}" if path else key, old.get(key, _ABSENT), new.get(key, _ABSENT)
        )
    ]


def _values(path: str, old: object, new: object) -> list[str]:
    if old is not _ABSENT and new is not _ABSENT and old == new and type(old) is type(new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return _maps(path, old, new)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, (a, b) in pairs for line in _values(f"{path}[{i}]", a, b)]
    return [f"{path}: {_show(old)} → {_show(new)}"]


def _show(value: object) -> str:
    if value is _ABSENT or value is None:
        return "(not set)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
