"""The kinds of values that a topology file holds: how each may be written, and what is wrong if not."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from vdisagg.topology.flags import canonical

CLUSTER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DESTINATION = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:@\s]+)(?::(?P<port>\d+))?"
)


def wrong(what: str, next_: str = "") -> PydanticCustomError:
    """An error in our own words; words.py passes it on as it is."""
    return PydanticCustomError("ours", "{what}", {"what": what, "next": next_})


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


def _instance_name(value: str) -> str:
    if not CLUSTER_NAME.fullmatch(value):
        raise wrong(f"{value!r} is no name for an instance", "use a-z, 0-9 and -")
    if value in ("controller", "front-end") or value.startswith("tunnel-"):
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


def _data_ip(value: str) -> str:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise wrong(f"{value!r} is no IP address", "for example 10.0.0.7") from None
    if address.is_unspecified or address.is_multicast:
        raise wrong(f"{value} is no machine's address", "say the one that other nodes dial")
    if isinstance(address, ipaddress.IPv6Address) and address.is_link_local:
        raise wrong(f"{value} is a link-local address", "say one that is routed")
    return str(address)


def _interface(value: str) -> str:
    # As the kernel's dev_valid_name: at most 15 bytes.
    if not re.fullmatch(r"[^\s/:]{1,15}", value) or value in (".", ".."):
        raise wrong(f"{value!r} is no name for an interface", "for example eth1 or ib0")
    return value


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
ClusterName = Annotated[str, AfterValidator(_cluster_name)]
InstanceName = Annotated[str, AfterValidator(_instance_name)]
IpAddress = Annotated[str, AfterValidator(_data_ip)]
Interface = Annotated[str, AfterValidator(_interface)]
Host = Annotated[str, AfterValidator(_host)]
FromDestination = BeforeValidator(_ssh)
"""Takes `user@host:port` for the map that it is short for."""
