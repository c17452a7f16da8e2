"""A flood of failing requests does not wash other events away."""

from __future__ import annotations

from vdisagg.control.actions import Note
from vdisagg.control.flood import BURST, PERIOD_S, Flood


def test_few_notes_are_told_one_by_one() -> None:
    flood = Flood()
    notes = [Note("request", f"r{i}: why") for i in range(BURST)]
    assert [told for note in notes for told in flood.admit(note, now=5.0)] == notes
    assert flood.due(now=100.0) == []


def test_of_many_the_first_are_told_and_the_others_counted() -> None:
    flood = Flood()
    told = [
        t for i in range(BURST + 7) for t in flood.admit(Note("request", f"r{i}: why"), now=5.0)
    ]
    assert len(told) == BURST
    assert flood.due(now=5.0 + PERIOD_S - 0.1) == []
    what = f"7 more in 10 s; the last: r{BURST + 6}: why"
    assert flood.due(now=5.0 + PERIOD_S) == [Note("request", what)]
    assert flood.due(now=5.0 + 3 * PERIOD_S) == []


def test_the_count_comes_before_what_follows_it() -> None:
    flood = Flood()
    for i in range(BURST + 1):
        flood.admit(Note("request", f"r{i}"), now=5.0)
    counted, new = flood.admit(Note("request", "new"), now=5.0 + PERIOD_S)
    assert counted.what.startswith("1 more")
    assert new == Note("request", "new")


def test_what_is_not_about_requests_is_always_told() -> None:
    flood = Flood()
    for i in range(5 * BURST):
        flood.admit(Note("request", f"r{i}"), now=5.0)
    note = Note("p0", "ready → dead")
    assert flood.admit(note, now=5.0) == [note]
