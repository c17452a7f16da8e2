"""Pass-through flags of `vllm serve`: one spelling, overriding, and the flags that the plan owns.

`args:` takes any flag, `tensor_parallel_size: 2` or `tensor-parallel-size: 2`. A key that is
written with its two dashes (`--some-flag: 1`) is not compared with the flags that we know of.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Literal

from vdisagg.topology import vllm_flags
from vdisagg.topology.fault import Fault, KeyPath

Owner = Literal["engine", "front_end"]

_ONE_CORE = "an instance is one engine core: say `count: N` for N of them"
_ONE_NODE = "an instance runs on one node in this version"
_OWNED: dict[str, str] = {
    "headless": "every engine is headless already; leave it out",
    "model": "say `model:` at the top of the file",
    "served-model-name": "say `served_model_name:` at the top of the file",
    "kv-transfer-config": "say `connector:` at the top of the file",
    "config": "write the flags of that file under `args:`",
    "api-server-count": "say `front_end.api_server_count`",
    "api-key": "say `front_end.api_key: {env: NAME}` or `{file: PATH}`: argv is public",
    "hf-token": "say `secrets: [HF_TOKEN]` on the node: argv is public",
    "host": "say `front_end.host`; engines open no HTTP port",
    "port": "say `front_end.port`; engines open no HTTP port",
    "uds": "say `front_end.host` and `front_end.port`",
    "grpc": "the front end speaks HTTP; leave it out",
    "device-ids": "say `gpus:` on the instance",
    "nnodes": _ONE_NODE,
    "node-rank": _ONE_NODE,
    "master-addr": _ONE_NODE,
    "master-port": _ONE_NODE,
}
_OWNED_ENV = {
    "CUDA_VISIBLE_DEVICES": "say `gpus:` on the instance",
    "VLLM_API_KEY": "say `front_end.api_key: {env: NAME}` or `{file: PATH}`",
    "VLLM_HOST_IP": "say `data_ip:` on the node",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "say `data_ip:` on the node",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "say `ports.first`",
    "VLLM_PORT": "say `ports.first`",
}
_COUNTED = ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size")


def flag_of(name: str) -> str:
    """The flag's name without dashes in front, in vLLM's spelling: `tensor-parallel-size`.

    What follows a dot is a key of a JSON value and keeps its spelling.
    """
    head, dot, rest = name.removeprefix("--").partition(".")
    return head.replace("_", "-") + dot + rest


def canonical(key: str, value: object) -> tuple[str, object]:
    """One spelling for a key of `args:`; `no_x: true` is `x: false`."""
    literal = "--" if key.startswith("--") else ""
    flag = flag_of(key)
    if flag.startswith("no-") and (value is None or isinstance(value, bool)):
        flag, value = flag[3:], value if value is None else not value
    if literal:
        return literal + flag, value
    head, dot, rest = flag.partition(".")
    return head.replace("-", "_") + dot + rest, value


def merge(levels: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Flags of all levels by `flag_of` name; a later level wins, and its null removes."""
    result: dict[str, object] = {}
    for level in levels:
        for name, value in level.items():
            result[flag_of(name)] = value
    return {flag: value for flag, value in result.items() if value is not None}


def world_size(args: Mapping[str, object]) -> int:
    """GPUs that an engine takes: tensor × pipeline × prefill-context parallel (vLLM's world_size).

    `args` is merged. Sizes that are no whole numbers count as 1; `check` reports them.
    """
    size = 1
    for flag in _COUNTED:
        value = args.get(flag, 1)
        size *= value if isinstance(value, int) and value > 0 else 1
    return size


def check(args: Mapping[str, object], path: KeyPath, owner: Owner) -> list[Fault]:
    """Faults of one `args:` map that stands at `path`."""
    faults = []
    for name, value in args.items():
        said = _check_name(name, owner) or _check_value(flag_of(name), value)
        if said:
            what, next_, at_key = said
            faults.append(Fault((*path, name), what, next_, at_key=at_key))
    return faults


def check_env(env: Mapping[str, str | None], path: KeyPath) -> list[Fault]:
    """Faults of one `env:` map: variables that the plan owns."""
    faults = []
    for name in env:
        next_ = _OWNED_ENV.get(name, "")
        if not next_ and name.startswith("VLLM_DP_"):
            next_ = "the plan sets it; leave it out"
        if next_:
            what = "the plan sets this variable"
            faults.append(Fault((*path, name), what, next_, at_key=True))
    return faults


def _check_name(name: str, owner: Owner) -> tuple[str, str, bool] | None:
    flag = flag_of(name).partition(".")[0]
    if not flag or not flag.replace("-", "a").rstrip("+").isalnum() or not flag[0].isalpha():
        return f"{name!r} is no name for a flag", "write it as in `tensor_parallel_size: 2`", True
    if flag in vllm_flags.SHORT:
        return f"{flag} is vLLM's short name", f"write `{vllm_flags.SHORT[flag]}`", True
    if flag.startswith("data-parallel") or flag == "data":
        return "the plan owns the data-parallel flags", _ONE_CORE, True
    for owned, next_ in _OWNED.items():
        # vLLM's parser takes abbreviations too: `--kv-transfer` is `--kv-transfer-config`.
        if flag == owned or (len(flag) > 3 and owned.startswith(flag)):
            if owned in ("host", "port") and owner == "front_end":
                next_ = f"say `front_end.{owned}`"
            return "the plan owns this flag", next_, True
    if name.startswith("--") or flag in vllm_flags.ALL:
        return None
    near = nearest(flag)
    if near:
        own = f"`--{flag}` is passed on untouched when written with its dashes"
        return "vLLM 0.32 has no such flag", f"did you mean `{near}`? ({own})", True
    return None


def nearest(flag: str) -> str:
    """The vLLM flag that `flag` most looks like, as a key of `args:`, or ""."""
    longer = [known for known in sorted(vllm_flags.ALL) if known.startswith(flag + "-")]
    near = longer or difflib.get_close_matches(flag, sorted(vllm_flags.ALL), n=1, cutoff=0.8)
    return near[0].replace("-", "_") if near else ""


def _check_value(flag: str, value: object) -> tuple[str, str, bool] | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if flag in _COUNTED and value is not None and not whole:
        return f"should be a whole number of at least 1; got {value!r}", "", False
    if value == [] or (isinstance(value, list) and any(item is None for item in value)):
        return "should be a list of values", "null removes an inherited flag", False
    return None


def words(args: Mapping[str, object]) -> tuple[str, ...]:
    """Merged flags as words of a command line, in their order."""
    return tuple(word for flag, value in args.items() for word in _words(flag, value))


def _words(flag: str, value: object) -> list[str]:
    name = f"--{flag}"
    if value is True:
        return [name]
    if value is False:
        return [] if flag in vllm_flags.SWITCHES else [f"--no-{flag}"]
    if isinstance(value, list):
        return [name, *map(_text, value)]
    text = _text(value)
    # argparse takes a word that begins with a dash for the next flag, unless it is a number.
    if text.startswith("-") and isinstance(value, str):
        return [f"{name}={text}"]
    return [name, text]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
