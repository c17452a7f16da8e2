"""The topology as frozen values: what a file may say, and its defaults.

Each public class is one map of the file. Texts of errors are in words.py; what no single map can
know (do the nodes exist, do the GPUs suffice) is in checks.py.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)
from pydantic_core import PydanticCustomError

from vdisagg.topology.flags import canonical

CLUSTER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DESTINATION = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:@\s]+)(?::(?P<port>\d+))?"
)


def wrong(what: str, next_: str = "") -> PydanticCustomError:
    """An error in our own words; words.py passes it on as it is."""
    return PydanticCustomError("ours", "{what}", {"what": what, "next": next_})


class Strict(BaseModel):
    """Frozen, no conversions, no unknown keys."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


def _args(value: object) -> object:
    """Flags by one spelling, so that later levels can override earlier ones."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        return value
    result: dict[str, object] = {}
    for key, item in value.items():
        name, item = canonical(str(key), item)
        if name in result:
            raise wrong(f"{key} is said twice under different spellings", "keep one")
        result[name] = item
    return result


def _env(value: object) -> object:
    if value is None:
        return {}
    if not isinstance(value, dict):
        return value
    result: dict[str, str | None] = {}
    for key, item in value.items():
        if not _VARIABLE.fullmatch(str(key)):
            raise wrong(f"{key!r} is no name for a variable", "use letters, digits and _")
        if isinstance(item, (bool, list, dict)):
            said = (
                {True: "true", False: "false"}.get(item)
                if isinstance(item, bool)
                else "a list or map"
            )
            raise wrong(f"{key} should be text or a number; got {said}", "put it in quotes")
        if isinstance(item, str) and "\0" in item:
            raise wrong(f"{key} holds a NUL character", "remove it")
        result[key] = item if item is None else str(item)
    return result


def _node_gpus(value: object) -> object:
    """`4` is short for `[0, 1, 2, 3]`."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= 1024:
            raise wrong(f"should be between 0 and 1024 GPUs; got {value}")
        return tuple(range(value))
    return _indices(value, "should be a number of GPUs, or the list of their indices")


def _own_gpus(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        hint = f"write [{value}] for GPU {value}; how many an engine takes follows from tensor_parallel_size"
        raise wrong(f"should be a list of GPU indices; got {value}", hint)
    return _indices(value, "should be a list of GPU indices")


def _indices(value: object, due: str) -> object:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or any(
        isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in value
    ):
        raise wrong(due, "for example [0, 1]")
    if len(set(value)) != len(value):
        raise wrong(f"names a GPU twice: {list(value)}", "name each index once")
    return tuple(value)


def _ssh(value: object) -> object:
    """`user@host:port` as a map; a map stays as it is."""
    if not isinstance(value, str):
        return value
    match = _DESTINATION.fullmatch(value)
    if not match:
        raise wrong(
            f"{value!r} is no SSH destination", "write user@host, user@host:port or an alias"
        )
    host = match["host"].strip("[]")
    return {
        "host": host,
        **({"user": match["user"]} if match["user"] else {}),
        **({"port": int(match["port"])} if match["port"] else {}),
    }


def _cluster_name(value: str) -> str:
    if not CLUSTER_NAME.fullmatch(value):
        raise wrong(
            f"{value!r} is no name for a cluster", "use a-z, 0-9 and -, at most 41 characters"
        )
    return value


def _instance_name(value: str | None) -> str | None:
    if value is not None and not CLUSTER_NAME.fullmatch(value):
        raise wrong(f"{value!r} is no name for an instance", "use a-z, 0-9 and -")
    if value in ("controller", "front-end"):
        raise wrong(f"{value!r} is the name of another process", "choose another")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise wrong(f"{value!r} is no name for a variable", "use letters, digits and _")
    return value


def _no_control(value: str) -> str:
    if not value.strip() or any(ord(character) < 32 for character in value):
        raise wrong("should be a line of text", "")
    return value


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise wrong(f"{value!r} is no IP address", "for example 10.0.0.7") from None


def _host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:%-]+", value):
        raise wrong(
            f"{value!r} is no host", "say a name or an IP address, without brackets or port"
        )
    return value


Args = Annotated[dict[str, JsonValue], BeforeValidator(_args)]
Env = Annotated[dict[str, str | None], BeforeValidator(_env)]
Line = Annotated[str, AfterValidator(_no_control)]
Port = Annotated[int, Field(ge=1, le=65535)]
Variable = Annotated[str, AfterValidator(_variable)]
NodeGpus = Annotated[tuple[int, ...] | None, BeforeValidator(_node_gpus)]
OwnGpus = Annotated[tuple[int, ...] | None, BeforeValidator(_own_gpus)]


class Ssh(Strict):
    """How a node is reached. What is left out comes from ~/.ssh/config."""

    host: Line
    user: Line | None = None
    port: Port | None = None
    identity_file: Line | None = None


class Node(Strict):
    """A machine."""

    device: Literal["cuda", "cpu"] = "cuda"
    ssh: Annotated[Ssh | None, BeforeValidator(_ssh)] = None
    """None: this machine."""
    data_ip: Annotated[str, AfterValidator(_address)] | None = None
    """The address that other nodes use to reach it."""
    interface: Line | None = None
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

    @property
    def local(self) -> bool:
        return self.ssh is None


class EngineDefaults(Strict):
    """What holds for all engines."""

    args: Args = {}
    env: Env = {}


class InstanceSpec(Strict):
    """One engine written out."""

    name: Annotated[str | None, AfterValidator(_instance_name)] = None
    node: str | None = None
    gpus: OwnGpus = None
    args: Args = {}
    env: Env = {}


class Side(Strict):
    """The engines of one role. `gpus` is what the side may use; its engines share it out in order."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    node: str | None = None
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
    host: Annotated[str, AfterValidator(_host)] = "127.0.0.1"
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


class TimeoutsSpec(Strict):
    """Deadlines in seconds."""

    launch_s: Annotated[float, Field(gt=0)] = 600.0
    stop_s: Annotated[float, Field(gt=0)] = 15.0
    request_s: Annotated[float, Field(gt=0)] = 300.0


class PortsSpec(Strict):
    """`first`: ports are taken from here upward. Below Linux's ephemeral range (32768)."""

    first: Annotated[int, Field(ge=1024, le=65000)] = 21000


class Topology(Strict):
    """One cluster. `load` fills in `name`, `served_model_name` and the `node` of each part."""

    name: Annotated[str, AfterValidator(_cluster_name)]
    model: Line
    """A hub name, or an absolute path."""
    served_model_name: Line
    connector: Line = "nixl"
    control: Literal["direct", "tunnel"] = "direct"
    log_dir: Line | None = None
    nodes: Annotated[dict[str, Node], Field(min_length=1)]
    engine: EngineDefaults = EngineDefaults()
    prefill: Side
    decode: Side
    front_end: FrontEndSpec = FrontEndSpec()
    controller: ControllerSpec = ControllerSpec()
    heartbeat: HeartbeatSpec = HeartbeatSpec()
    timeouts: TimeoutsSpec = TimeoutsSpec()
    ports: PortsSpec = PortsSpec()

    @model_validator(mode="after")
    def _node_names(self) -> Topology:
        for name in self.nodes:
            if not _NODE_NAME.fullmatch(name):
                raise wrong(f"{name!r} is no name for a node", "use letters, digits, - _ and .")
        return self

    @property
    def model_is_path(self) -> bool:
        return self.model.startswith("/")
