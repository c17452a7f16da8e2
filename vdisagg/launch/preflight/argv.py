"""Reads the command lines that the plan has made: `[setup …] vllm serve MODEL --flag value …`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVE = "serve"
_SIZES = ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size")


def split(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(words that run a setup and become what follows, words that are vLLM): see plan/site.py."""
    words = tuple(argv[: argv.index(SERVE)])
    at = 4 if words[:2] == ("bash", "-ec") else 0
    return words[:at], words[at:]


def value(argv: Sequence[str], flag: str) -> str | None:
    """A flag's value; "" for one that stands alone, None where it isn't said."""
    name = f"--{flag}"
    flags = argv[argv.index(SERVE) + 1 :]
    found = None
    for at, word in enumerate(flags):
        if word.startswith(f"{name}="):
            found = word.partition("=")[2]
        elif word == name:
            following = flags[at + 1] if at + 1 < len(flags) else "--"
            found = "" if following.startswith("--") else following
        elif word == f"--no-{flag}":
            found = "no"
    return found


def world_size(argv: Sequence[str]) -> int:
    """Processes that run one model together."""
    size = 1
    for flag in _SIZES:
        said = value(argv, flag) or ""
        size *= int(said) if said.isdigit() and int(said) > 0 else 1
    return size
