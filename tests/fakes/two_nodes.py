"""A plan with a controller here and one engine on each of two nodes, all of them this machine."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from vdisagg.errors import Failure
from vdisagg.launch import pythons
from vdisagg.launch.dialogue import Dialogue
from vdisagg.launch.pipes import Here, PipeTalk
from vdisagg.launch.ports import busy
from vdisagg.plan.model import (
    Address,
    FrontEnd,
    Heartbeat,
    Instance,
    Kind,
    Node,
    Plan,
    Process,
    Role,
    Ssh,
    Timeouts,
)

HERE, N1, N2 = "127.0.0.3", "127.0.0.1", "127.0.0.2"
VLLM = "/opt/venv/bin/vllm"


def process(name: str, kind: Kind, node: str, *flags: str, **env: str) -> Process:
    argv = (VLLM, "serve", "/models/m", *flags)
    return Process(name, kind, node, argv, env, f"/var/t/{name}")


def instance(name: str, node: str, *flags: str, first: int = 21000, **env: str) -> Instance:
    role: Role = "prefill" if name.startswith("p") else "decode"
    handshake, requests, outputs = (Address(HERE, first + at) for at in range(3))
    made = process(name, role, node, *flags, **env)
    return Instance(name, role, made, (), handshake, requests, outputs, (first + 3,))


def plan(*instances: Instance, first: int = 21000, **changes: object) -> Plan:
    """p0 on n1, d0 on n2; the front end and the controller here. `first` is its first port."""
    default = (instance("p0", "n1", first=first), instance("d0", "n2", first=first + 4))
    made = Plan(
        name="t",
        topology_file="t.yaml",
        digest="d",
        topology={},
        model="/models/m",
        connector="nixl",
        instances=instances or default,
        front_end=FrontEnd(
            process("front-end", "front_end", "here"),
            Address("127.0.0.1", first + 8),
            Address(HERE, first + 9),
            1,
            "m",
        ),
        controller=Process("controller", "controller", "here", ("x",), {}, "/var/t/controller"),
        heartbeat=Heartbeat(1.0, 3, 2),
        timeouts=Timeouts(1.0, 1.0, 1.0),
        nodes=(
            Node("here", "cpu", HERE, work_directory="/tmp"),
            Node("n1", "cpu", N1, Ssh("n1.example"), work_directory="/tmp"),
            Node("n2", "cpu", N2, Ssh("n2.example"), work_directory="/tmp"),
        ),
    )
    return msgspec.structs.replace(made, **changes)


def free_block(count: int = 10) -> int:
    """The first of so many free ports in a row, below the range that the kernel gives to clients."""
    while True:
        first = random.randrange(10_000, 30_000)
        wanted = [
            Address(host, first + at) for host in ("127.0.0.1", N2, HERE) for at in range(count)
        ]
        if not busy(wanted):
            return first


def serves(folder: Path, vllm: str, wanted: Plan) -> Plan:
    """The plan with another vLLM and model on all nodes."""

    def changed(old: Process) -> Process:
        argv = (vllm, "serve", str(folder), *old.argv[3:])
        return msgspec.structs.replace(old, argv=argv)

    front = msgspec.structs.replace(wanted.front_end, process=changed(wanted.front_end.process))
    engines = tuple(
        msgspec.structs.replace(i, process=changed(i.process)) for i in wanted.instances
    )
    return msgspec.structs.replace(wanted, model=str(folder), front_end=front, instances=engines)


class Within(Here):
    """A node where each command runs behind these words, such as `unshare --net`."""

    def __init__(self, *wrapper: str) -> None:
        self.wrapper = wrapper

    def talk(self, words: Sequence[str]) -> PipeTalk:
        name, *rest = words
        return super().talk((*self.wrapper, f"/bin/{name}", *rest))


class Lost(Here):
    """A node that can't be asked."""

    def __init__(self, message: str) -> None:
        self.message = message

    def talk(self, words: Sequence[str]) -> PipeTalk:
        raise Failure(self.message)


class Nodes:
    """In the place of launch.nodes.Nodes: every node is this machine, but for those given. Use it with
    `with`."""

    def __init__(self, **ways: Here) -> None:
        self._ways = ways
        self._dialogues: dict[str, Dialogue] = {}

    def dialogue(self, name: str) -> Dialogue:
        if name not in self._dialogues:
            way = self._ways.get(name)
            own = (sys.executable,) if way is None else ()
            tried = (*own, *pythons.candidates(None))
            self._dialogues[name] = Dialogue(way or Here(), name, tried)
        return self._dialogues[name]

    def try_forward(self, name: str, port: int) -> None:
        raise AssertionError("no plan here has a tunnel")

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for dialogue in self._dialogues.values():
            dialogue.close()
