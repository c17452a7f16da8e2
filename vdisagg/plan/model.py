"""What a plan is made of: frozen values that travel as JSON between the CLI and the controller.

This module imports nothing of the topology, so that the controller stays light.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["prefill", "decode"]
Kind = Literal["prefill", "decode", "front_end", "controller"]


class Address(msgspec.Struct, frozen=True):
    """A TCP endpoint. `host` is an IP literal or a name, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def zmq(self) -> str:
        """The address in ZeroMQ's form, `tcp://host:port`."""
        return f"tcp://{self}"


class Ssh(msgspec.Struct, frozen=True):
    """How OpenSSH reaches a node; what is not set comes from the user's ssh_config."""

    host: str
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None


class Node(msgspec.Struct, frozen=True):
    """A machine of the cluster, as launching and looking after it need to know it."""

    name: str
    device: str
    address: str
    """Its data address, that others dial: an IP literal or a name, without brackets."""
    ssh: Ssh | None = None
    """None: the machine that runs the CLI."""
    python: str | None = None
    """The interpreter that has vLLM, where the topology names one."""
    work_directory: str = "~/.vdisagg"
    """Base of what is kept there: the cluster's folder is `<work_directory>/<plan.name>`."""
    setup: str | None = None
    """A shell line that runs before vLLM."""


class Secret(msgspec.Struct, frozen=True):
    """An environment variable whose value is read at launch and stands in no plan, record or argv.

    Exactly one of `from_env` (a variable of the launching shell) and `from_file` is set.
    """

    variable: str
    from_env: str | None = None
    from_file: str | None = None


class Process(msgspec.Struct, frozen=True):
    """One process that a guard starts on a node."""

    name: str
    kind: Kind
    node: str
    argv: tuple[str, ...]
    env: dict[str, str]
    directory: str
    """On the node: where the guard keeps this process's log, pid and exit code."""
    secrets: tuple[Secret, ...] = ()
    switches: bool = False
    """Whether the stock process takes up our switches (see launch/switches): the runner copies
    them into `<directory>/switches`, which the plan has already put on PYTHONPATH."""


class Instance(msgspec.Struct, frozen=True):
    """One vLLM engine: its process and the addresses that join it to the controller."""

    name: str
    role: Role
    process: Process
    gpus: tuple[int, ...]
    handshake: Address
    """Bound by the controller; the engine dials it with HELLO and READY."""
    requests: Address
    """Bound by the controller (ROUTER); requests flow to the engine."""
    outputs: Address
    """Bound by the controller (PULL); outputs come from the engine."""
    connector_ports: tuple[int, ...] = ()
    """Ports on the instance's node that its connector listens on, rank offsets included."""


class FrontEnd(msgspec.Struct, frozen=True):
    """The stock API server(s)."""

    process: Process
    http: Address
    handshake: Address
    """Bound by the front end; the controller dials it, playing one remote headless engine."""
    api_server_count: int
    served_model_name: str

    @property
    def url(self) -> str:
        """Base URL that clients of this machine use."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.http.host, self.http.host)
        return f"http://{Address(host, self.http.port)}"


class Heartbeat(msgspec.Struct, frozen=True):
    """How links are kept alive."""

    interval_s: float
    misses: int
    canary_tokens: int
    """Tokens that a probe decodes (at least 2)."""


class Timeouts(msgspec.Struct, frozen=True):
    """Deadlines in seconds."""

    launch_s: float
    stop_s: float
    """Grace between TERM and KILL."""
    request_s: float
    """Longest wait for the first output of a leg before the request is failed."""


class Plan(msgspec.Struct, frozen=True):
    """Everything that `up` starts, resolved."""

    name: str
    topology_file: str
    digest: str
    """SHA-256 over the resolved topology: two files that mean the same have the same digest."""
    topology: dict[str, object]
    """The resolved topology as plain values, kept so that a later `up` can name what changed."""
    model: str
    connector: str
    instances: tuple[Instance, ...]
    front_end: FrontEnd
    controller: Process
    heartbeat: Heartbeat
    timeouts: Timeouts
    nodes: tuple[Node, ...] = ()
    """All nodes of the topology, in its order."""

    def processes(self) -> tuple[Process, ...]:
        """All processes in launch order: controller, engines, front end."""
        engines = (instance.process for instance in self.instances)
        return (self.controller, *engines, self.front_end.process)

    def ports(self) -> dict[Address, str]:
        """Every port that must be free before launch, and what it is for."""
        wanted: dict[Address, str] = {}
        for i in self.instances:
            wanted[i.handshake] = f"{i.name} handshake"
            wanted[i.requests] = f"{i.name} requests"
            wanted[i.outputs] = f"{i.name} outputs"
            for port in i.connector_ports:
                wanted[Address(i.handshake.host, port)] = f"{i.name} {self.connector}"
        wanted[self.front_end.handshake] = "front end handshake"
        wanted[self.front_end.http] = "front end HTTP"
        return wanted
