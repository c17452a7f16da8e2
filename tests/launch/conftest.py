"""Clusters of small scripts in the places of engines, front end and controller."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes.disk import Disk, small_disk
from vdisagg.cluster import record
from vdisagg.cluster.snapshot import ClusterView, DownResult, Observation, Progress, UpResult
from vdisagg.launch.down import down
from vdisagg.launch.local import LocalRunner
from vdisagg.launch.ports import busy
from vdisagg.launch.status import status
from vdisagg.launch.up import up
from vdisagg.plan.model import (
    Address,
    FrontEnd,
    Heartbeat,
    Instance,
    Kind,
    Node,
    Plan,
    Process,
    Restart,
    Role,
    Timeouts,
)

if TYPE_CHECKING:
    from vdisagg.launch.runner import RunnerFor

HERE = Path(__file__).parent
PATIENCE_S = 20.0

# A leader with a child and a grandchild in its session, as an engine has. It says so and gets ready; from then
# on it has these two and no other.
ENGINE = "rm -f ready; echo loading; sh -c 'sleep 1000 & echo $PPID >ready; wait' & wait"
ENGINE_THAT_DIES = "rm -f ready; for i in $(seq 30); do echo line $i; done; echo no memory; exit 7"
ENGINE_THAT_LOADS_FOR_EVER = "rm -f ready; echo loading; sleep 1000 & wait"
# Ends its own leader on TERM but leaves a child that will not hear of it.
STUBBORN_ENGINE = (
    "rm -f ready; sh -c 'trap \"\" TERM; touch ready; while :; do sleep 1; done' & wait"
)


def _wait_until(claim: Callable[[], object], limit_s: float = 20.0) -> None:
    """Wait for a condition; the limit is generous, since it only ends a test that fails."""
    deadline = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has at this moment, from below the range that the kernel gives to clients:
    so nobody gets one by chance between two ups of a test."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 30_000)
        if port not in found and not busy([Address("127.0.0.1", port)]):
            found.append(port)
    return found


def _is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


class Talk:
    """A report that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stages: dict[str, list[str]] = {}
        self.times: list[tuple[float, ...]] = []
        """Of every report, each entry's."""

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, entries: Sequence[Progress]) -> None:
        self.times.append(tuple(entry.elapsed_s for entry in entries))
        for entry in entries:
            stages = self.stages.setdefault(entry.name, [])
            if stages[-1:] != [entry.stage]:
                stages.append(entry.stage)


class Cluster:
    """A plan of stand-ins, and the commands on it."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.directory = record.state_directory(name)
        self.talk = Talk()
        self.runner = LocalRunner()
        self.engines: dict[str, str] = {"p0": ENGINE, "d0": ENGINE}
        self.ports = free_ports(2 + 4 * len(self.engines))
        self.launch_s = 30.0
        self.stop_s = 0.5
        self.restart = Restart(policy="never")
        self.topology: dict[str, object] = {"name": name, "decode": {"count": 1}}
        self.digest = "digest-1"
        self.extra: dict[str, dict[str, object]] = {}
        """Fields of processes to be set otherwise, by process."""
        self.nodes: tuple[Node, ...] = ()
        self.runner_for: RunnerFor = lambda node: self.runner
        self.runners_of: Callable[[Plan], RunnerFor] | None = None

    def process(self, name: str, kind: Kind, argv: tuple[str, ...]) -> Process:
        directory = self.root / self.name / name
        made = Process(name, kind, "here", argv, {"MARK": f"{self.name}/{name}"}, str(directory))
        return msgspec.structs.replace(made, **self.extra.get(name, {}))

    def instance(self, name: str, script: str, ports: list[int]) -> Instance:
        role: Role = "prefill" if name.startswith("p") else "decode"
        handshake, requests, outputs = (Address("127.0.0.1", port) for port in ports[:3])
        process = self.process(name, role, ("sh", "-c", script))
        return Instance(name, role, process, (), handshake, requests, outputs, (ports[3],))

    @property
    def plan(self) -> Plan:
        http, handshake, *rest = self.ports
        fake_front = (sys.executable, "-I", "-S", str(HERE / "fake_front_end.py"), str(http))
        fake_controller = (sys.executable, str(HERE / "fake_controller.py"), str(self.directory))
        return Plan(
            name=self.name,
            topology_file=f"{self.name}.yaml",
            digest=self.digest,
            topology=self.topology,
            model="model",
            connector="nixl",
            instances=tuple(
                self.instance(name, script, rest[4 * i : 4 * i + 4])
                for i, (name, script) in enumerate(self.engines.items())
            ),
            front_end=FrontEnd(
                process=self.process("front-end", "front_end", fake_front),
                http=Address("127.0.0.1", http),
                handshake=Address("127.0.0.1", handshake),
                api_server_count=1,
                served_model_name="model",
            ),
            controller=self.process("controller", "controller", fake_controller),
            heartbeat=Heartbeat(1.0, 3, 2),
            timeouts=Timeouts(self.launch_s, self.stop_s, 10.0),
            restart=self.restart,
            nodes=self.nodes,
        )

    def up(
        self,
        environment: dict[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> UpResult:
        return up(
            self.plan,
            self.runner_for,
            state_directory=self.directory,
            report=self.talk,
            runners_of=self.runners_of,
            environment=environment or {},
            clock=clock,
        )

    def down(self) -> DownResult:
        return down(self.runner_for, state_directory=self.directory, say=self.talk.say)

    def status(self, *, admin_limit_s: float = PATIENCE_S) -> ClusterView:
        """As the command gives it, but that who is only slow is waited for."""
        return status(
            self.runner_for,
            state_directory=self.directory,
            admin_limit_s=admin_limit_s,
            nodes_limit_s=PATIENCE_S,
        )

    def observe(self, name: str) -> Observation:
        process = next(p for p in self.plan.processes() if p.name == name)
        return self.runner.observe(process)

    def pids(self) -> dict[str, tuple[int, ...]]:
        """Living processes by name, guards included."""
        found = {}
        for process in self.plan.processes():
            seen = self.runner.observe(process)
            guard = (seen.guard_pid,) if seen.guard_alive and seen.guard_pid else ()
            found[process.name] = seen.members + guard
        return found

    def is_empty(self) -> bool:
        return not any(self.pids().values())

    def clean_up(self) -> None:
        for process in self.plan.processes():
            self.runner.stop(process, 0.1)


@pytest.fixture
def make_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Cluster]]:
    """Makes clusters whose state is under tmp_path; whatever they start is ended after the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    made: list[Cluster] = []

    def make(name: str) -> Cluster:
        made.append(Cluster(tmp_path / "work", name))
        return made[-1]

    yield make
    for cluster in made:
        cluster.clean_up()


@pytest.fixture
def cluster(make_cluster: Callable[[str], Cluster]) -> Cluster:
    return make_cluster("demo")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk that can be filled."""
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def wait_until() -> Callable[..., None]:
    return _wait_until


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    return _is_alive
