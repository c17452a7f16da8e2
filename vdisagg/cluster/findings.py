"""What preflight has to say of a cluster's nodes, as plain values: launch makes them, view shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

Level = Literal["error", "warning", "note"]
"""error: `up` refuses. warning: it goes on, and says it. note: what was found to be in order."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that preflight found on one node."""

    node: str
    what: str
    """What was looked at: `vLLM`, `GPU 0`, `port`, `path` …"""
    found: str
    expected: str = ""
    next: str = ""
    level: Level = "error"

    def __str__(self) -> str:
        expected = f" (expected: {self.expected})" if self.expected else ""
        next_ = f"; next: {self.next}" if self.next else ""
        return f"{self.node}: {self.what}: {self.found}{expected}{next_}"


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those for which `up` refuses."""
    return tuple(finding for finding in findings if finding.level == "error")


def warnings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that `up` says and goes on."""
    return tuple(finding for finding in findings if finding.level == "warning")
