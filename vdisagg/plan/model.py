"""What a plan is made of: frozen values that travel as JSON between the CLI and the controller.

This module imports nothing of the topology, so that the controller stays light.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["prefill", "decode"]
Kind = Literal["prefill", "decode", "front_end", "controller", "tunnel"]
Control = Literal["direct", "tunnel"]


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
    manual: bool = False
    """Whether somebody else starts its process; it dials in all the same, and is not ours to end."""

    @property
    def control(self) -> tuple[Address, Address, Address]:
        """Handshake, requests and outputs: what joins it to the controller."""
        return (self.handshake, self.requests, self.outputs)


class FrontEnd(msgspec.Struct, frozen=True):
    """The stock API server(s)."""

    process: Process
    http: Address
    handshake: Address
    """Bound by the front end; the controller dials it, playing one remote headless engine."""
    api_server_count: int
    served_model_name: str
    reached_at: str = ""
    """The address of its node, where that is another machine."""

    @property
    def url(self) -> str:
        """Base URL that clients of this machine use."""
        every = {"0.0.0.0": self.reached_at or "127.0.0.1", "::": self.reached_at or "::1"}
        return f"http://{Address(every.get(self.http.host, self.http.host), self.http.port)}"


class Heartbeat(msgspec.Struct, frozen=True):
    """How links are kept alive."""

    interval_s: float
    misses: int
    canary_tokens: int
    """Tokens that a proof of a link decodes (at least 2)."""

    @property
    def limit_s(self) -> float:
        """How long nothing may be heard before it counts as death: `interval_s` times `misses`."""
        return self.interval_s * self.misses


class Timeouts(msgspec.Struct, frozen=True):
    """Deadlines in seconds."""

    launch_s: float
    stop_s: float
    """Grace between TERM and KILL."""
    request_s: float
    """Longest wait for the first output of a leg before the request is failed."""
    handover_s: float = 30.0
    """Longest wait for the first token of a decode leg that nothing but its transfer holds up."""
    lease_s: float = 30.0
    """How long prefill keeps a finished leg's blocks for a decode engine that says nothing."""


class Restart(msgspec.Struct, frozen=True):
    """What a guard does when its process has failed."""

    policy: Literal["on-failure", "never"] = "on-failure"
    limit: int = 5
    """Restarts in a row before it gives up; forgotten once the process has lived for `reset_s`."""
    backoff_s: float = 1.0
    """Before the second restart in a row (the first is at once); doubled each time, up to 60 s."""
    stopped_s: float = 30.0
    """A process that has been stopped by a signal for so long is killed, which is a failure."""
    reset_s: float = 600.0

    def quick(self) -> Restart:
        """The same for a process that loads nothing: requests wait for it, and it is there again in a moment.
        So it rests for a tenth of the time, is tried twice as often, and one that lived for five seconds was
        well."""
        return msgspec.structs.replace(
            self,
            limit=2 * self.limit,
            backoff_s=self.backoff_s / 10,
            reset_s=min(self.reset_s, 5.0),
        )


class Failover(msgspec.Struct, frozen=True):
    """What may be done for a request that its link can't serve."""

    decode_alone: bool = True
    """Whether decode engines compute prompts themselves when no prefill engine is left."""


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
    control: Control = "direct"
    """How instances on other machines reach the controller: at its address, or at a loopback
    address of their own machine, which a tunnel carries to the same address of the controller's."""
    restart: Restart = Restart()
    failover: Failover = Failover()
    tunnels: tuple[Process, ...] = ()
    """One process for each node whose instances need a tunnel. It runs beside the controller."""

    def restart_of(self, process: Process) -> Restart:
        """What the guard of one of its processes does when it has failed."""
        loads = process.kind in ("prefill", "decode", "front_end")
        return self.restart if loads else self.restart.quick()

    def processes(self) -> tuple[Process, ...]:
        """All processes that are ours to start and end, in launch order: controller, tunnels,
        engines, front end."""
        engines = (i.process for i in self.instances if not i.manual)
        return (self.controller, *self.tunnels, *engines, self.front_end.process)

    def manual_instances(self) -> tuple[Instance, ...]:
        """Those that somebody else starts."""
        return tuple(instance for instance in self.instances if instance.manual)

    def ssh_nodes(self) -> tuple[Node, ...]:
        """Nodes that must be reached by SSH: a process of ours, or a tunnel's end, is there."""
        ours = {process.node for process in self.processes()} | set(self.tunnelled())
        return tuple(node for node in self.nodes if node.ssh is not None and node.name in ours)

    def tunnelled(self) -> dict[str, tuple[int, ...]]:
        """By node: ports whose loopback address there a tunnel carries to the controller."""
        if self.control == "direct":
            return {}
        far = {node.name for node in self.nodes if node.ssh is not None}
        ports: dict[str, tuple[int, ...]] = {}
        for i in self.instances:
            if i.process.node in far:
                mine = ports.get(i.process.node, ())
                ports[i.process.node] = (*mine, *(address.port for address in i.control))
        return ports

    def ports(self) -> dict[Address, str]:
        """Every port of the cluster, on whatever node, and what it is for."""
        wanted: dict[Address, str] = {}
        for node in dict.fromkeys(process.node for process in self._all_processes()):
            wanted |= self._ports_of(node, manual=True)
        return wanted

    def ports_of(self, node: str) -> dict[Address, str]:
        """Every port that must be free on a node before launch, and what it is for.

        What somebody else's processes listen on is left to him.
        """
        return self._ports_of(node, manual=False)

    def _all_processes(self) -> tuple[Process, ...]:
        manual = (instance.process for instance in self.manual_instances())
        return (*self.processes(), *manual)

    def _ports_of(self, node: str, *, manual: bool) -> dict[Address, str]:
        wanted: dict[Address, str] = {}
        forwarded = self.tunnelled().get(node, ())
        hosts = {known.name: known.address for known in self.nodes}
        for i in self.instances:
            names = ("handshake", "requests", "outputs")
            for address, what in zip(i.control, names, strict=True):
                if node == self.controller.node or address.port in forwarded:
                    wanted[address] = f"{i.name} {what}"
            if node == i.process.node and (manual or not i.manual):
                host = hosts.get(node, i.handshake.host)
                for port in i.connector_ports:
                    wanted[Address(host, port)] = f"{i.name} {self.connector}"
        if node == self.front_end.process.node:
            wanted[self.front_end.handshake] = "front end handshake"
            wanted[self.front_end.http] = "front end HTTP"
        return wanted
