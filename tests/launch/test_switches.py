"""The switches, in interpreters of their own as stock processes take them up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vdisagg.launch.local import SWITCHES

# A ROUTER that hears two peers of one identity; prints which of them gets what it sends. With the switch it is the
# second, whenever that comes; without, nothing ever does.
TAKE_OVER = """
import os, zmq
limit_ms = 20_000 if "VDISAGG_CHANNEL" in os.environ else 1000
context = zmq.Context()
router = context.socket(zmq.ROUTER)
port = router.bind_to_random_port("tcp://127.0.0.1")
peers = []
for name in (b"first", b"second"):
    peer = context.socket(zmq.DEALER)
    peer.setsockopt(zmq.IDENTITY, b"\\0\\0")
    peer.connect(f"tcp://127.0.0.1:{port}")
    peer.send(name)
    peers.append(peer)
    if name == b"first":
        assert router.recv_multipart() == [b"\\0\\0", b"first"]
router.poll(limit_ms)
router.send_multipart([b"\\0\\0", b"answer"])
print("second" if peers[1].poll(limit_ms) else "first" if peers[0].poll(20_000) else "nobody")
context.destroy(linger=0)
"""

# What sockets were told about heartbeats when they dialled.
PINGS = """
import zmq
context = zmq.Context()
context.socket(zmq.PULL).bind("inproc://there")
for kind in ("DEALER", "PUSH", "SUB"):
    for address in ("tcp://127.0.0.1:9", "tcp://[::1]:9", "inproc://there"):
        dialled = context.socket(getattr(zmq, kind))
        try:
            dialled.connect(address)
        except zmq.ZMQError:
            pass
        print(kind, address[:3], dialled.HEARTBEAT_IVL, dialled.HEARTBEAT_TIMEOUT, dialled.HEARTBEAT_TTL)
context.destroy(linger=0)
"""

BINDING = """
class nixlBind:
    class nixlAgent:
        def __init__(self, name, config):
            self.delay = config.pthrDelay
class Config:
    pthrDelay = 0
def agent():
    return nixlBind.nixlAgent("a", Config())
"""


def run(script: str, path: list[Path], **variables: str) -> str:
    """What a script prints in a fresh interpreter with the switches first on its PYTHONPATH."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VDISAGG_")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [SWITCHES, *path]))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_with_the_switch_a_new_connection_takes_over_a_routers_identity() -> None:
    assert run(TAKE_OVER, [], VDISAGG_CHANNEL="1") == "second"


def test_without_the_switch_the_first_connection_keeps_it() -> None:
    assert run(TAKE_OVER, []) == "first"


def test_the_switch_holds_for_asyncio_sockets_too() -> None:
    script = (
        "import zmq.asyncio, zmq.sugar.socket; "
        "print(zmq.asyncio.Socket.bind is zmq.sugar.socket.Socket.bind, "
        "zmq.asyncio.Socket.bind.__module__)"
    )
    assert run(script, [], VDISAGG_CHANNEL="1") == "True vdisagg_sockets"


def test_what_an_engine_dials_the_controller_with_pings_and_nothing_else_does() -> None:
    told = {
        tuple(line.split()[:2]): line.split()[2:]
        for line in run(PINGS, [], VDISAGG_PING_S="2.5").splitlines()
    }
    for kind in ("DEALER", "PUSH"):
        assert told[kind, "tcp"] == ["2500", "3750", "0"]
    quiet = {" ".join(values) for key, values in told.items() if "SUB" in key or "inp" in key}
    assert quiet == {"0 -1 0"}
    assert {line.split()[2] for line in run(PINGS, []).splitlines()} == {"0"}


@pytest.mark.parametrize("package", ["nixl_cu12", "nixl_cu13", "nixl_rocm"])
def test_nixls_progress_thread_rests_as_long_as_asked(tmp_path: Path, package: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "_api.py").write_text(BINDING)
    script = f"from {package}._api import agent; print(agent().delay)"
    assert run(script, [tmp_path]) == "0"
    assert run(script, [tmp_path], VDISAGG_NIXL_PROGRESS_DELAY_US="1000") == "1000"


def test_a_sitecustomize_that_the_switches_hide_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.hidden = 'ran'")
    assert run("print(hidden)", [tmp_path]) == "ran"


def test_without_switches_nothing_is_imported_early() -> None:
    assert run("import sys; print('zmq' in sys.modules)", [], VDISAGG_CHANNEL="1") == "False"


def test_a_process_keeps_its_cores() -> None:
    ask = "import os; os.sched_setaffinity(0, {%d}); print(sorted(os.sched_getaffinity(0)))"
    cores = sorted(os.sched_getaffinity(0))
    for switch, expected in (("1", cores), ("", cores[-1:])):
        assert run(ask % cores[-1], [], VDISAGG_KEEP_AFFINITY=switch) == str(expected)
