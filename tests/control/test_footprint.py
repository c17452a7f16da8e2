"""The controller stays light: what it must not import, it does not, not even by way of others."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "vllm", "pydantic", "paramiko", "typer", "rich", "yaml", "aiohttp", "numpy")


def test_the_controller_imports_nothing_heavy() -> None:
    program = "import sys, vdisagg.control.controller as c; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert {"vdisagg", "zmq", "msgspec"} <= loaded
    assert loaded.isdisjoint(HEAVY)
