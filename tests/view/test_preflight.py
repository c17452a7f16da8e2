"""Preflight's findings as a table and as JSON."""

from __future__ import annotations

import json

from rich.console import Console

from vdisagg.cluster.findings import Finding
from vdisagg.view.preflight import findings_json, findings_table, verdict

ERROR = Finding("n1", "port of p0 nixl", "[::1]:21003 is taken: pid 7 (x)", "free", "end it")
WARNING = Finding("n2", "clock", "3.0 s ahead of [this]", "within 2 s", "use NTP", "warning")
NOTE = Finding("all", "paths", "7 of 7 between nodes are open", level="note")


def printed(*findings: Finding) -> list[str]:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(findings_table(findings))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_each_finding_is_a_row_with_all_that_it_says() -> None:
    heading, first, second, third, _, last = printed(ERROR, WARNING, NOTE)
    assert heading.split() == ["NODE", "LEVEL", "WHAT", "FOUND", "EXPECTED", "NEXT"]
    assert first.split(maxsplit=2)[:2] == ["n1", "error"]
    assert "[::1]:21003 is taken: pid 7 (x)" in first
    assert first.endswith("end it")
    assert "3.0 s ahead of [this]" in second
    assert "7 of 7 between nodes are open" in third
    assert last == "1 error, 1 warning: `vdisagg up` would refuse"


def test_without_errors_up_would_go_on() -> None:
    assert verdict([WARNING, WARNING]) == "0 errors, 2 warnings: `vdisagg up` would go on"


def test_json_has_all_fields_and_the_counts() -> None:
    value = json.loads(findings_json([ERROR, NOTE]))
    assert (value["errors"], value["warnings"]) == (1, 0)
    assert value["findings"][0] == {
        "node": "n1",
        "what": "port of p0 nixl",
        "found": "[::1]:21003 is taken: pid 7 (x)",
        "expected": "free",
        "next": "end it",
        "level": "error",
    }


def test_a_finding_as_a_line_says_where_what_and_what_next() -> None:
    assert str(ERROR) == (
        "n1: port of p0 nixl: [::1]:21003 is taken: pid 7 (x) (expected: free); next: end it"
    )
