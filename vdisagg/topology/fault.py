"""A fault at a key path, before the file gives it a line and a column."""

from __future__ import annotations

from dataclasses import dataclass

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """What is wrong at `path`, and what to do. `at_key`: the key is at fault, not its value."""

    path: KeyPath
    what: str
    next: str = ""
    at_key: bool = False

    def touches(self, path: KeyPath) -> bool:
        """Whether one of the two paths contains the other."""
        shared = min(len(path), len(self.path))
        return path[:shared] == self.path[:shared]


def spell(path: KeyPath) -> str:
    """`("decode", "instances", 1, "gpus")` as `decode.instances[1].gpus`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
