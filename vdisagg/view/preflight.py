"""Preflight's findings for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from vdisagg.cluster.findings import errors, warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from vdisagg.cluster.findings import Finding, Level

STYLES: dict[Level, str] = {"error": "red", "warning": "yellow", "note": "dim"}


def findings_table(findings: Sequence[Finding]) -> RenderableType:
    """All findings in one table, and what they come to."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NODE", "LEVEL", "WHAT"):
        table.add_column(heading, no_wrap=True)
    for heading in ("FOUND", "EXPECTED", "NEXT"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        # Text, not markup: a command line may hold brackets.
        level = Text(finding.level, style=STYLES[finding.level])
        words = (finding.what, finding.found, finding.expected, finding.next)
        table.add_row(Text(finding.node), level, *map(Text, words))
    return Group(table, "", Text(verdict(findings)))


def verdict(findings: Sequence[Finding]) -> str:
    """`2 errors, 1 warning: up would refuse`."""
    wrong, doubtful = len(errors(findings)), len(warnings(findings))
    count = ", ".join((_number(wrong, "error"), _number(doubtful, "warning")))
    return f"{count}: `vdisagg up` would {'refuse' if wrong else 'go on'}"


def findings_json(findings: Sequence[Finding]) -> str:
    """The same for programs."""
    value = {
        "errors": len(errors(findings)),
        "warnings": len(warnings(findings)),
        "findings": list(findings),
    }
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
