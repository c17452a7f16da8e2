"""What a node without GPUs needs beyond stock vLLM. Whatever the topology says wins over this.

- `VLLM_TARGET_DEVICE=cpu`: device detection fails where vLLM's distribution has another name.
- `VLLM_CPU_KVCACHE_SPACE=1` (GiB): engines on one machine share its memory; vLLM's own default
  is meant for one engine alone.
- `UCX_TLS=tcp,self,shm`: NIXL's transports that need no special hardware.
- `OMP_NUM_THREADS=1` and `VLLM_CPU_OMP_THREADS_BIND=nobind`: without them all engines on a
  machine bind their threads to the same cores.
- `VDISAGG_NIXL_PROGRESS_DELAY_US=1000`: NIXL's progress thread polls without a pause and keeps a
  core busy while idle. No flag of vLLM or NIXL reaches it; the switches (a `sitecustomize` on the
  engine's PYTHONPATH) set its delay, in microseconds. Only here: with GPUs cores are plenty.
- `enforce_eager`: compiling costs minutes on a CPU and gains little. Not with pipeline parallelism,
  where the CPU executor dies on an assertion when it is on.
"""

from __future__ import annotations

from collections.abc import Mapping

_STOCK = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def engine_environment(device: str) -> dict[str, str]:
    """Variables of an engine on a node with this device."""
    if device != "cpu":
        return {}
    return _STOCK | {"UCX_TLS": "tcp,self,shm", "VDISAGG_NIXL_PROGRESS_DELAY_US": "1000"}


def front_end_environment(device: str) -> dict[str, str]:
    """Variables of the front end on a node with this device: it moves no KV."""
    return dict(_STOCK) if device == "cpu" else {}


def engine_flags(device: str, args: Mapping[str, object]) -> dict[str, object]:
    """Flags that an engine gets unless `args` (merged, by flag) says otherwise."""
    pipelined = args.get("pipeline-parallel-size", 1) != 1
    return {"enforce-eager": True} if device == "cpu" and not pipelined else {}


def takes_switches(device: str) -> bool:
    """Whether engines on a node with this device take up the switches."""
    return device == "cpu"
