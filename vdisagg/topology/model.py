"""The topology as frozen values: what a file may say, and its defaults.

Each public class is one map of the file. Texts of errors are in words.py; what no single map can
know (do the nodes exist, do the GPUs suffice) is in checks.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vdisagg.topology.fields import (
    NODE_NAME,
    Args,
    ClusterName,
    Env,
    FromDestination,
    Host,
    InstanceName,
    Interface,
    IpAddress,
    Line,
    NodeGpus,
    OwnGpus,
    Port,
    Variable,
    wrong,
)

Launch = Literal["auto", "manual"]


class Strict(BaseModel):
    """Frozen, no conversions, no unknown keys.

    `defer_build`: pydantic makes validators when they are first used. A file needs only that of
    Topology, which holds the rest; building each on import would double the time of `check`.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)


class Ssh(Strict):
    """How a node is reached. What is left out comes from ~/.ssh/config."""

    host: Line
    user: Line | None = None
    port: Port | None = None
    identity_file: Line | None = None


class Node(Strict):
    """A machine."""

    device: Literal["cuda", "cpu"] = "cuda"
    ssh: Annotated[Ssh | None, FromDestination] = None
    """None: this machine."""
    data_ip: IpAddress | None = None
    """The address that other nodes use to reach it."""
    interface: Interface | None = None
    """Or the interface that has it: looked up there when the cluster is launched."""
    gpus: NodeGpus = None
    python: Line | None = None
    vllm: Line | None = None
    setup: str | None = None
    """Shell lines that run before each engine, such as `module load cuda`."""
    env: Env = {}
    work_dir: Line | None = None
    secrets: Annotated[tuple[Variable, ...], Field(strict=False)] = ()
    """Variables of the launching shell that its processes get, in no argv and no record."""

    @model_validator(mode="after")
    def _one_vllm(self) -> Node:
        if self.python is not None and self.vllm is not None:
            raise wrong("has both `python` and `vllm`", "say one: both tell where vLLM is")
        return self

    @model_validator(mode="after")
    def _one_address(self) -> Node:
        if self.data_ip is not None and self.interface is not None:
            raise wrong("has both `data_ip` and `interface`", "say one: both tell its address")
        return self

    @property
    def local(self) -> bool:
        return self.ssh is None


class EngineDefaults(Strict):
    """What holds for all engines."""

    args: Args = {}
    env: Env = {}


class InstanceSpec(Strict):
    """One engine written out. What is left out comes from its side."""

    name: InstanceName | None = None
    node: str | None = None
    launch: Launch | None = None
    gpus: OwnGpus = None
    args: Args = {}
    env: Env = {}


class Side(Strict):
    """The engines of one role. `gpus` is what the side may use; its engines share it out in order."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    node: str | None = None
    launch: Launch = "auto"
    """`manual`: somebody else starts the engines, by the command that `up` prints."""
    gpus: OwnGpus = None
    args: Args = {}
    env: Env = {}
    instances: Annotated[tuple[InstanceSpec, ...] | None, Field(strict=False)] = None

    @model_validator(mode="after")
    def _one_way_to_count(self) -> Side:
        if self.instances is not None and "count" in self.model_fields_set:
            raise wrong(
                "has both `count` and `instances`", "say one: the list's length is the count"
            )
        if self.instances == ():
            raise wrong("`instances` is an empty list", "list one engine, or say `count`")
        return self


class ApiKey(Strict):
    """Where the API key is. Its value stands in no file of ours."""

    env: Variable | None = None
    file: Line | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ApiKey:
        if (self.env is None) == (self.file is None):
            raise wrong("should say one of `env` and `file`", "for example {env: MY_API_KEY}")
        return self


class FrontEndSpec(Strict):
    """The API server."""

    node: str | None = None
    host: Host | None = None
    """Where HTTP listens. None: loopback here; on a node with `ssh`, the node's address."""
    port: Port = 8000
    api_server_count: Annotated[int, Field(ge=1, le=64)] = 1
    args: Args = {}
    env: Env = {}
    api_key: ApiKey | None = None


class ControllerSpec(Strict):
    """Our own process."""

    node: str | None = None


class HeartbeatSpec(Strict):
    """A dummy request goes through each link that was idle for `interval_s`."""

    interval_s: Annotated[float, Field(gt=0, le=86400)] = 10.0
    misses: Annotated[int, Field(ge=1, le=1000)] = 3  # two lost beats are ordinary
    canary_tokens: Annotated[int, Field(ge=1, le=1024)] = 8
    """Tokens that a proof of a link decodes (at least 2: prefill alone would answer 1)."""


class TimeoutsSpec(Strict):
    """Deadlines in seconds."""

    launch_s: Annotated[float, Field(gt=0)] = 600.0
    stop_s: Annotated[float, Field(gt=0)] = 15.0
    request_s: Annotated[float, Field(gt=0)] = 300.0
    handover_s: Annotated[float, Field(gt=0)] = 30.0
    """Longest wait for the first token of a decode leg that nothing but its transfer holds up."""
    lease_s: Annotated[float, Field(ge=1, le=86400)] = 30.0
    """How long prefill keeps a finished leg's blocks for a decode engine that says nothing."""


class RestartSpec(Strict):
    """What a guard does when its process has failed."""

    policy: Literal["on-failure", "never"] = "on-failure"
    limit: Annotated[int, Field(ge=0, le=1000)] = 5
    backoff_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    stopped_s: Annotated[float, Field(gt=0, le=86400)] = 30.0
    reset_s: Annotated[float, Field(gt=0, le=86400)] = 600.0


class FailoverSpec(Strict):
    """What may be done for a request that its link can't serve."""

    decode_alone: bool = True


class PortsSpec(Strict):
    """`first`: ports are taken from here upward. Below Linux's ephemeral range (32768)."""

    first: Annotated[int, Field(ge=1024, le=65000)] = 21000


class Topology(Strict):
    """One cluster. `load` fills in `name`, `served_model_name`, nodes, and parts left out."""

    name: ClusterName
    model: Line
    """A hub name, or an absolute path."""
    served_model_name: Line
    connector: Line = "nixl"
    control: Literal["direct", "tunnel"] = "direct"
    log_dir: Line | None = None
    nodes: Annotated[dict[str, Node], Field(min_length=1)]
    engine: EngineDefaults = Field(default_factory=EngineDefaults)
    prefill: Side
    decode: Side
    front_end: FrontEndSpec = Field(default_factory=FrontEndSpec)
    controller: ControllerSpec = Field(default_factory=ControllerSpec)
    heartbeat: HeartbeatSpec = Field(default_factory=HeartbeatSpec)
    timeouts: TimeoutsSpec = Field(default_factory=TimeoutsSpec)
    restart: RestartSpec = Field(default_factory=RestartSpec)
    failover: FailoverSpec = Field(default_factory=FailoverSpec)
    ports: PortsSpec = Field(default_factory=PortsSpec)

    @model_validator(mode="after")
    def _node_names(self) -> Topology:
        for name in self.nodes:
            if not NODE_NAME.fullmatch(name):
                raise wrong(f"{name!r} is no name for a node", "use letters, digits, - _ and .")
        return self

    @property
    def model_is_path(self) -> bool:
        return self.model.startswith("/")
