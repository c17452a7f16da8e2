"""What a controller leaves for the next one, and what the next one does not take."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from vdisagg.cluster.leftovers import PART_SAVED_FILE, SAVED_FILE
from vdisagg.control.saved import Saved, SavedFront, SavedInstance, read, write
from vdisagg.errors import Failure

SAVED = Saved(
    created=1000.5,
    front=SavedFront(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], ["tcp://127.0.0.1:3"]),
    instances={
        "p0": SavedInstance(2, b"\x81\xa1a\x01\xff", "ready"),
        "d0": SavedInstance(1, None, "connected"),
    },
    links=[("p0", "d0")],
)


def found(directory: Path, created: float = 1000.5) -> tuple[Saved | None, list[str]]:
    """What is read, and what is said meanwhile."""
    said: list[str] = []
    return read(directory, created=created, say=said.append), said


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path, SAVED)
    assert found(tmp_path) == (SAVED, [])
    write(tmp_path, Saved(1000.5))
    assert found(tmp_path) == (Saved(1000.5), [])
    assert [path.name for path in tmp_path.iterdir()] == [SAVED_FILE]


def test_it_is_its_owners_alone_whatever_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / PART_SAVED_FILE).write_bytes(b"x" * 10_000)
    (tmp_path / PART_SAVED_FILE).chmod(0o644)
    write(tmp_path, SAVED)
    assert stat.S_IMODE((tmp_path / SAVED_FILE).stat().st_mode) == 0o600
    assert found(tmp_path)[0] == SAVED


def test_where_nothing_is_nothing_is_said(tmp_path: Path) -> None:
    assert found(tmp_path) == (None, [])


def test_another_runs_is_not_taken_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path, SAVED)
    assert found(tmp_path, created=1000.6) == (
        None,
        [f"{tmp_path / SAVED_FILE}: of another run, so nothing is taken over"],
    )


@pytest.mark.parametrize("text", [b"", b"{", b"7", b'{"created": "x"}', b"\xff", b"[" * 100_000])
def test_garbage_is_not_taken_and_that_is_said(tmp_path: Path, text: bytes) -> None:
    (tmp_path / SAVED_FILE).write_bytes(text)
    saved, (said,) = found(tmp_path)
    assert saved is None
    assert said.startswith(f"{tmp_path / SAVED_FILE}: not what a controller saves")


def test_what_cannot_be_read_is_not_taken_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / SAVED_FILE).mkdir()
    saved, (said,) = found(tmp_path)
    assert saved is None
    assert "cannot be read, so nothing is taken over: Is a directory" in said


def test_where_it_cannot_be_written_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        Failure, match=rf"^{tmp_path / 'no' / SAVED_FILE}: cannot be written: No such"
    ):
        write(tmp_path / "no", SAVED)
