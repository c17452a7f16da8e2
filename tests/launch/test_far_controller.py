"""What travels to a controller on another machine, and its relay, in interpreters of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fakes.cluster import make_plan
from vdisagg.cluster import record
from vdisagg.launch import far_controller

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
        words = [sys.executable, "-I", "-S", "-c", far_controller.RELAY, str(directory), "5", "s"]
        done = subprocess.run(words, input="hello\n", capture_output=True, text=True)
        answering.join()
    assert (done.stdout, done.returncode) == ("HELLO\n", 0), done.stderr
