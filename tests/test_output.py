"""What commands print, where it can't be printed: an error or nothing, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_cli import TOPOLOGY, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `vdisagg` from a shell, which sees to its streams: run("status", ">/dev/full").

    `stdout`: a descriptor to be its stdout.
    """
    (tmp_path / "demo.yaml").write_text(TOPOLOGY)

    def run_it(
        words: str, streams: str = "", stdout: int = subprocess.PIPE
    ) -> subprocess.CompletedProcess[str]:
        script = f"'{sys.executable}' -m vdisagg {words} {streams}"
        done = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        return done

    return run_it


@pytest.fixture
def without_a_reader() -> Iterator[int]:
    """The end of a pipe to write to, whose other end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("check demo.yaml", "stdout"),
        ("check demo.yaml --json", "stdout"),
        ("status", "stdout"),
        ("down", "stdout"),
        ("--version", "stdout"),
        ("--help", "vdisagg --help"),
        ("up --help", "vdisagg up"),
    ],
)
def test_a_result_that_cannot_be_written_is_an_error(run: Run, words: str, where: str) -> None:
    done = run(words, ">/dev/full")
    said = f"error: {where}: No space left on device; next: make room there"
    assert done.returncode == 1
    assert done.stderr.startswith(said)


def test_what_a_command_has_done_is_told_where_its_result_cannot_be(run: Run) -> None:
    done = run("down demo.yaml", ">/dev/full")
    assert "(cluster demo is down all the same)" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"), [("check demo.yaml", 0), ("check demo.yaml --json", 0), ("status", 1)]
)
def test_a_reader_that_has_gone_is_no_fault(
    run: Run, without_a_reader: int, words: str, code: int
) -> None:
    done = run(words, stdout=without_a_reader)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_help_for_a_reader_that_has_gone_is_quiet(run: Run, without_a_reader: int) -> None:
    assert run("--help", stdout=without_a_reader).stderr == ""


def test_an_error_that_cannot_be_written_keeps_its_exit_code(run: Run) -> None:
    assert run("check nowhere.yaml", "2>/dev/full").returncode == 2
    assert run("events --name nowhere", "2>/dev/full").returncode == 1


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("check demo.yaml", ">&-", 0),
        ("check demo.yaml", "<&- >&- 2>&-", 0),
        ("check nowhere.yaml", "2>&-", 2),
    ],
)
def test_streams_may_be_closed(run: Run, words: str, streams: str, code: int) -> None:
    assert run(words, streams).returncode == code


def test_with_stdout_closed_no_file_gets_what_is_printed(run: Run, tmp_path: Path) -> None:
    run("down demo.yaml", ">&-")
    found = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert [path.read_text() for path in found if path.read_text()] == []


def test_a_file_in_the_place_of_a_state_directory_is_no_cluster(run: Run, tmp_path: Path) -> None:
    (tmp_path / "state" / "vdisagg").mkdir(parents=True)
    (tmp_path / "state" / "vdisagg" / "demo").touch()
    status, down = run("status --name demo"), run("down --name demo")
    assert (status.returncode, status.stdout) == (1, "cluster demo: nothing runs\n")
    assert (down.returncode, down.stdout) == (0, "cluster demo: nothing runs\n")
    up = run("up demo.yaml --no-preflight")
    assert up.returncode in (1, 2)  # the latter where there is no vLLM
