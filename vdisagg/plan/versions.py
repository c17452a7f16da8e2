"""The vLLM versions whose engine protocol has been compared with ours."""

from __future__ import annotations

from typing import Final

KNOWN_VERSIONS: Final = ("0.32.0",)


def is_known(version: str) -> bool:
    """Whether this vLLM's messages are known; local parts (`0.32.0+cpu`) don't change them."""
    return public_part(version) in KNOWN_VERSIONS


def public_part(version: str) -> str:
    """A version without its local part: `0.32.0` of `0.32.0+cu130`."""
    return version.split("+", 1)[0]
