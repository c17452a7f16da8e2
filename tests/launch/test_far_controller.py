"""What travels to a controller on another machine, and its relay, in interpreters of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.cluster import make_plan
from vdisagg.cluster import admin, record
from vdisagg.launch import errands, far_controller
from vdisagg.plan.model import Node, Process, Ssh

IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import vdisagg.control.controller, vdisagg.control.__main__
ours = [m for name, m in sys.modules.items() if name.partition(".")[0] == "vdisagg"]
assert all(m.__file__.startswith(sys.argv[1]) for m in ours), ours
print(len(ours) > 10)
"""


def test_the_controller_imports_nothing_of_ours_but_what_travels(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 1, 1, interval_s=10)
    recorded = record.Record(plan, 0.0, 1, "starting", {})
    for path, text in far_controller.files(recorded).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert record.read(tmp_path) == recorded
    package = str(tmp_path / far_controller.PACKAGE)
    words = [sys.executable, "-c", IMPORT, package]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("True", "")


class Relay:
    """A node's runner, as far as the controller there is asked through it."""

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self.lines: list[str] = []

    def relay(self, process: Process, line: str, limit_s: float) -> str:
        self.lines.append(line)
        return self._answer


def test_parameters_travel_to_a_controller_on_another_machine(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 1, 1, interval_s=10)
    there = Node("here", "cpu", "10.0.0.2", ssh=Ssh("there"))
    far = msgspec.structs.replace(plan, nodes=(there,))
    relay = Relay('{"events":[{"at":1.5,"subject":"p0","what":"x","number":8}],"last":8}\n')

    def runner_for(node: str) -> Any:
        assert node == "here"
        return relay

    answer = far_controller.ask(
        far, tmp_path, runner_for, admin.Events, "events", after=7, timeout_s=5.0
    )
    assert answer == admin.Events([admin.Event(1.5, "p0", "x", 8)], 8)
    assert relay.lines == ['{"op":"events","after":7}\n']


@pytest.mark.parametrize("deep", ["here", "x" * 150])
def test_the_relay_carries_one_line_each_way(tmp_path: Path, deep: str) -> None:
    directory = tmp_path / deep
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        (tmp_path / "s").rename(directory / "s")
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as lines:
                lines.write(lines.readline().upper())

        answering = threading.Thread(target=answer)
        answering.start()
        words = [sys.executable, errands.__file__, "relay", str(directory), "s", "5"]
        done = subprocess.run(words, input="hello\n", capture_output=True, text=True)
        answering.join()
    assert (done.stdout, done.returncode) == ("HELLO\n", 0), done.stderr
