"""Events that outlive their controller."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from vdisagg.cluster import happened
from vdisagg.cluster.admin import Event, Events
from vdisagg.cluster.happened import KEPT, Happened
from vdisagg.cluster.leftovers import EVENTS_FILE, OLD_EVENTS_FILE
from vdisagg.control.history import History

A = Event(10.5, "p0", "planned → ready", 1)
B = Event(11.0, "d0", "dead", 2)


def history(directory: Path, *events: Event, run: float = 7.0, max_bytes: int = 1 << 20) -> History:
    """A controller's history, to which it adds `events`."""
    made = History.open(directory, run=run, max_bytes=max_bytes)
    for event in events:
        assert made.add(event.at, event.subject, event.what) == event
    return made


def test_events_are_numbered_and_written_as_they_happen(tmp_path: Path) -> None:
    history(tmp_path, A, B)
    assert (tmp_path / EVENTS_FILE).read_text() == (
        '{"run":7.0}\n'
        '{"at":10.5,"subject":"p0","what":"planned → ready","number":1}\n'
        '{"at":11.0,"subject":"d0","what":"dead","number":2}\n'
    )
    assert stat.S_IMODE((tmp_path / EVENTS_FILE).stat().st_mode) == 0o600


def test_only_later_ones_than_a_number_are_given(tmp_path: Path) -> None:
    kept = history(tmp_path, A, B)
    assert kept.after() == Events([A, B], 2)
    assert kept.after(1) == Events([B], 2)
    assert kept.after(2) == kept.after(99) == Events([], 2)


def test_the_next_controller_goes_on_with_events_and_numbers(tmp_path: Path) -> None:
    history(tmp_path, A)
    kept = history(tmp_path, B)
    assert kept.after() == Events([A, B], 2)
    assert (tmp_path / EVENTS_FILE).read_text().count("run") == 1


def test_another_runs_events_are_not_shown_and_numbers_go_on(tmp_path: Path) -> None:
    history(tmp_path, A, run=7.0)
    kept = history(tmp_path, B, run=8.0)
    assert kept.after() == Events([B], 2)
    assert happened.read(tmp_path, run=8.0) == Happened([B], 2, True)
    assert happened.read(tmp_path, run=7.0) == Happened([A], 2, False)


def test_half_a_last_line_is_left_out_and_nothing_is_lost_behind_it(tmp_path: Path) -> None:
    history(tmp_path, A)
    whole = (tmp_path / EVENTS_FILE).read_bytes()
    for cut in range(1, 40):
        (tmp_path / EVENTS_FILE).write_bytes(whole + whole.splitlines()[1][:cut])
        assert history(tmp_path, B).after() == Events([A, B], 2)
        assert History.open(tmp_path, run=7.0).after() == Events([A, B], 2), cut


@pytest.mark.parametrize("line", [b"7", b"[]", b'{"number": "x"}', b"\xff\xfe", b"{}", b""])
def test_lines_that_cannot_be_read_are_left_out(tmp_path: Path, line: bytes) -> None:
    history(tmp_path, A)
    with (tmp_path / EVENTS_FILE).open("ab") as file:
        file.write(line + b"\n")
    assert history(tmp_path, B).after() == Events([A, B], 2)


def test_files_are_bounded_and_the_last_events_are_read_back_across_them(tmp_path: Path) -> None:
    made = history(tmp_path, max_bytes=3000)
    for number in range(1, 501):
        assert made.add(1.0, "x", "y" * number).number == number
    sizes = [(tmp_path / name).stat().st_size for name in (EVENTS_FILE, OLD_EVENTS_FILE)]
    assert max(sizes) < 3600
    assert {path.name for path in tmp_path.iterdir()} == {EVENTS_FILE, OLD_EVENTS_FILE}
    back = History.open(tmp_path, run=7.0).after()
    numbers = [event.number for event in back.events]
    assert numbers == list(range(numbers[0], 501))
    assert len(numbers) > 4
    assert back.last == 500


def test_the_last_thousand_are_kept(tmp_path: Path) -> None:
    made = history(tmp_path)
    for _ in range(KEPT + 5):
        made.add(1.0, "x", "y")
    for kept in (made, History.open(tmp_path, run=7.0)):
        numbers = [event.number for event in kept.after().events]
        assert numbers == list(range(6, KEPT + 6))


def test_where_they_cannot_be_written_they_are_kept_all_the_same(tmp_path: Path) -> None:
    kept = history(tmp_path / "no", A, B)
    assert (
        kept.fault
        == f"{tmp_path / 'no' / EVENTS_FILE}: events are not written: No such file or directory"
    )
    assert kept.after(1) == Events([B], 2)


def test_without_files_nothing_has_happened(tmp_path: Path) -> None:
    assert happened.read(tmp_path, run=7.0) == Happened([], 0, False)
