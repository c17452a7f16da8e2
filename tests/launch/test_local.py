"""The runner for this machine, beyond what the guard's own tests cover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from vdisagg.errors import LaunchFailed
from vdisagg.launch.local import SWITCHES, LocalRunner
from vdisagg.plan.model import Process


@pytest.fixture
def runner() -> LocalRunner:
    return LocalRunner()


@pytest.fixture
def make_process(tmp_path: Path, runner: LocalRunner) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(script: str, **fields: Any) -> Process:
        directory = str(tmp_path / "p0")
        argv = ("sh", "-c", script)
        made.append(Process("p0", "prefill", "here", argv, {"WORD": "hello"}, directory, **fields))
        return made[-1]

    yield make
    for process in made:
        runner.stop(process, 0.1)


def test_a_process_runs_in_its_directory_with_its_environment_and_secrets(
    runner: LocalRunner, make_process: Callable[..., Process], wait_until: Callable[..., None]
) -> None:
    process = make_process('echo "$PWD $WORD $KEY"')
    started = runner.start(process, {"KEY": "k3y"}, 1.0)
    wait_until(lambda: runner.observe(process).state == "exited")
    assert runner.tail(process, 5) == [f"{process.directory} hello k3y"]
    assert started.pid == runner.observe(process).pid


def test_switches_are_put_in_place_only_where_they_are_asked_for(
    runner: LocalRunner, make_process: Callable[..., Process]
) -> None:
    runner.start(make_process("true"), {}, 1.0)
    switches = Path(make_process("true").directory) / "switches"
    assert not switches.exists()
    runner.stop(make_process("true"), 0.1)
    runner.start(make_process("true", switches=True), {}, 1.0)
    copied = {module.name: module.read_text() for module in switches.iterdir()}
    assert copied == {module.name: module.read_text() for module in SWITCHES.glob("*.py")}
    assert "sitecustomize.py" in copied


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, runner: LocalRunner) -> None:
    (tmp_path / "file").touch()
    process = Process("p0", "prefill", "here", ("true",), {}, str(tmp_path / "file" / "p0"))
    with pytest.raises(LaunchFailed, match=rf"p0: {tmp_path}/file.*; next: "):
        runner.start(process, {}, 1.0)


def test_the_tail_of_no_log_is_empty(
    runner: LocalRunner, make_process: Callable[..., Process]
) -> None:
    assert runner.tail(make_process("true"), 5) == []


def test_the_tail_has_the_last_lines(
    runner: LocalRunner, make_process: Callable[..., Process], wait_until: Callable[..., None]
) -> None:
    process = make_process("seq 100")
    runner.start(process, {}, 1.0)
    wait_until(lambda: runner.observe(process).state == "exited")
    assert runner.tail(process, 3) == ["98", "99", "100"]
    assert runner.tail(process, 0) == []


def test_following_goes_on_into_the_log_of_the_next_start(
    runner: LocalRunner, make_process: Callable[..., Process], wait_until: Callable[..., None]
) -> None:
    first = make_process("seq 5")
    runner.start(first, {}, 1.0)
    wait_until(lambda: runner.observe(first).state == "exited")
    collected: list[str] = []

    def collect() -> None:
        for line in islice(runner.follow(first, 2), 5):
            collected.append(line)  # one by one, as the test looks on

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    wait_until(lambda: collected == ["4", "5"])
    runner.start(make_process("printf 'a\\nb'; sleep 0.3; printf 'c\\nd\\n'"), {}, 1.0)
    reader.join(20)
    assert collected == ["4", "5", "a", "bc", "d"]
