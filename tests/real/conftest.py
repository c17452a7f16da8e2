"""Real clusters for the tests: stock vLLM on CPU, started and taken down through the command line.

Everything lives in directories of the test run: state, logs, topologies. A cluster is shared by all
tests of a session that don't harm it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from real.processes import environment_of, processes_of
from vdisagg.cluster import admin

ROOT = Path(__file__).parents[2]
MODELS = ROOT / ".cache" / "models"
BIN = Path(sys.executable).parent
UP_S = 600
CATCH_UP_S = 0.5
"""Of statistics that come by the hundred the controller takes the last in within this time."""
RETURN_S = 2.0
"""docs/faults.md: so long may blocks take to come back."""
B = 128
"""Block size of vLLM on CPU, in tokens."""


@dataclass(frozen=True)
class Home:
    """Where the state and logs of this test's clusters are."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """For the command line."""
        return {**os.environ, "XDG_STATE_HOME": str(self.directory / "state"), "COLUMNS": "200"}

    def vdisagg(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        run = subprocess.run(
            [str(BIN / "vdisagg"), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=UP_S,
            check=False,
        )
        if check:
            assert run.returncode == 0, f"{words}: {run.returncode}\n{run.stdout}\n{run.stderr}"
        return run


@dataclass(frozen=True)
class RealCluster:
    """A cluster that is up, or has been."""

    home: Home
    name: str
    file: Path
    url: str
    model: str

    @property
    def state(self) -> Path:
        """Its state directory."""
        return self.home.directory / "state" / "vdisagg" / self.name

    def up(self) -> None:
        """Start it, through the command line."""
        self.home.vdisagg("up", str(self.file))

    def down(self) -> None:
        """Take it down, and see that nothing is left."""
        self.home.vdisagg("down", "--name", self.name)
        assert self.processes() == []

    def processes(self) -> list[int]:
        """Living processes that belong to this cluster, whatever they are called now."""
        return processes_of(self.home.directory)

    def view(self) -> dict[str, Any]:
        """`vdisagg status --json`."""
        run = self.home.vdisagg("status", "--name", self.name, "--json", check=False)
        view: dict[str, Any] = json.loads(run.stdout)
        return view

    def heard(self) -> dict[str, Any]:
        """The same, of a moment when the controller has answered: a machine may keep it from that."""
        deadline = time.monotonic() + 30
        while not (view := self.view())["controller_answers"]:
            assert time.monotonic() < deadline, view["problems"]
        return view

    def status(self) -> admin.ControllerStatus:
        """What the controller says."""
        return admin.ask(self.state, admin.ControllerStatus, "status")

    def fresh(self) -> admin.ControllerStatus:
        """The same, after every engine has taken a step and reported its blocks.

        An idle engine reports nothing, so the controller sends each one a dummy request of one token;
        the statistics that come with its end no longer count that request's own block.
        """
        before = time.time()
        admin.ask(self.state, admin.Done, "refresh")
        self.until(
            lambda s: all((i.stats_at or 0) > before for i in s.instances), "fresh statistics"
        )
        time.sleep(CATCH_UP_S)
        return self.status()

    def until(
        self,
        condition: Callable[[admin.ControllerStatus], bool],
        what: str,
        patience_s: float = 30.0,
        ask: Callable[[], admin.ControllerStatus] | None = None,
    ) -> admin.ControllerStatus:
        """Wait for the controller's status to fulfil a condition."""
        deadline = time.monotonic() + patience_s
        while True:
            status = (ask or self.status)()
            if condition(status):
                return status
            assert time.monotonic() < deadline, f"no {what} within {patience_s} s: {status}"
            time.sleep(0.02)

    def idle(self, patience_s: float = RETURN_S) -> admin.ControllerStatus:
        """Wait until nothing is under way, a heartbeat neither, and no engine holds a block: released,
        that is, since a lease would take 30 s."""
        return self.until(_is_idle, "rest", patience_s, ask=self.fresh)

    def instance(self, name: str) -> admin.InstanceStatus:
        """One instance's part of the status."""
        return next(i for i in self.status().instances if i.name == name)


def _is_idle(status: admin.ControllerStatus) -> bool:
    held = (i.in_flight + i.running + i.waiting + i.kv_blocks_used for i in status.instances)
    return not (any(held) or status.totals.in_flight or status.totals.handles_held)


def free_port() -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])


def cluster_at(directory: Path, name: str, model: str, **changes: Any) -> RealCluster:
    """Write a topology: one prefill and one decode engine, small enough for several on one machine."""
    port = free_port()
    topology: dict[str, Any] = {
        "name": name,
        "model": str(MODELS / model),
        "served_model_name": name,
        "log_dir": str(directory / "logs"),
        "nodes": {"here": {"device": "cpu"}},
        "engine": {
            "args": {
                "max_model_len": 1024,
                "dtype": "float32",
                "max_num_seqs": 32,
                "num_gpu_blocks_override": 256,
            }
        },
        "prefill": {"node": "here"},
        "decode": {"node": "here"},
        "front_end": {"port": port},
        # Below the ephemeral ports, and apart for runs side by side.
        "ports": {"first": 24000 + os.getpid() % 400 * 20},
    }
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(topology.get(key), dict):
            topology[key] = {**topology[key], **value}
        else:
            topology[key] = value
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(topology))
    return RealCluster(Home(directory), name, file, f"http://127.0.0.1:{port}", name)


def running(cluster: RealCluster) -> Iterator[RealCluster]:
    """For fixtures: up, then down whatever happens in between."""
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """1P1D on the tiny model, whose output depends on its early context."""
    yield from running(cluster_at(tmp_path_factory.mktemp("tiny"), "tiny", "tiny"))


@pytest.fixture(scope="session")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """1P1D on SmolLM2, behind two API servers."""
    directory = tmp_path_factory.mktemp("smol")
    front_end = {
        "api_server_count": 2,
        "args": {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
    }
    cluster = cluster_at(directory, "smol", "SmolLM2-135M-Instruct", front_end=front_end)
    yield from running(cluster)


def _plain(directory: Path, model: str) -> Iterator[str]:
    """One stock `vllm serve` without any of ours; yields its URL."""
    port = free_port()
    log = (directory / "plain.log").open("w")
    words = [
        *(str(BIN / "vllm"), "serve", str(MODELS / model), "--served-model-name", "plain"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"),
        *("--dtype", "float32", "--max-num-seqs", "32", "--enforce-eager"),
        *("--num-gpu-blocks-override", "256", "--distributed-executor-backend", "uni"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    process = subprocess.Popen(
        words, env=environment_of(directory), stdout=log, stderr=log, start_new_session=True
    )
    try:
        _wait_for_http(port, process, directory / "plain.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        end_group(process)
        log.close()


def _wait_for_http(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + UP_S
    while True:
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started in a session of its own, and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="session")
def plain_tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One plain engine on the tiny model."""
    yield from _plain(tmp_path_factory.mktemp("plain-tiny"), "tiny")


@pytest.fixture(scope="session")
def plain_smol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One plain engine on SmolLM2."""
    yield from _plain(tmp_path_factory.mktemp("plain-smol"), "SmolLM2-135M-Instruct")
