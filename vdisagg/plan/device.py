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
- `VDISAGG_KEEP_AFFINITY=1`: vLLM's NIXL connector binds the thread that makes it to the last core
  of each NUMA node, whatever `VLLM_CPU_OMP_THREADS_BIND` says. With the executor below that thread
  runs the model, and all engines of the machine would share one core. (The switch that lets engines
  ping has nothing to do with the device: plan.processes has it.)
- `enforce_eager`: compiling costs minutes on a CPU and gains little. Not with pipeline parallelism,
  where the CPU executor dies on an assertion when it is on. With it goes `TORCH_COMPILE_DISABLE=1`:
  vLLM compiles a few functions all the same, when they are first needed; the first request that
  asks for log-probabilities stood still for minutes of C++ compilation, and all others with it.
- `distributed_executor_backend: uni` with `VLLM_ENABLE_V1_MULTIPROCESSING=0`, where one process can
  run the model (no tensor or pipeline parallelism): the engine core then runs it itself. That saves
  a process and its memory, and a hop per step (TPOT 4.2 ms against 5.2 in one comparison).
"""

from __future__ import annotations

from collections.abc import Mapping

_EXECUTOR = "distributed-executor-backend"
_STOCK = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_SWITCHES = {"VDISAGG_NIXL_PROGRESS_DELAY_US": "1000", "VDISAGG_KEEP_AFFINITY": "1"}


def engine_environment(
    device: str, args: Mapping[str, object], *, switches: bool
) -> dict[str, str]:
    """Variables of an engine on a node with this device; `args` are all its flags, `switches` whether
    it takes those up."""
    if device != "cpu":
        return {}
    env = _STOCK | (_SWITCHES if switches else {}) | {"UCX_TLS": "tcp,self,shm"}
    if args.get("enforce-eager") is True:
        env["TORCH_COMPILE_DISABLE"] = "1"
    if args.get(_EXECUTOR) == "uni":
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return env


def front_end_environment(device: str) -> dict[str, str]:
    """Variables of the front end on a node with this device: it moves no KV."""
    return dict(_STOCK) if device == "cpu" else {}


def engine_flags(device: str, args: Mapping[str, object]) -> dict[str, object]:
    """Flags that an engine gets unless `args` (merged, by flag) says otherwise."""
    if device != "cpu":
        return {}
    pipelined = args.get("pipeline-parallel-size", 1) != 1
    spread = pipelined or args.get("tensor-parallel-size", 1) != 1
    eager = {} if pipelined else {"enforce-eager": True}
    return eager | ({} if spread else {_EXECUTOR: "uni"})


def takes_switches(device: str) -> bool:
    """Whether engines on a node with this device need switches, wherever it is."""
    return device == "cpu"
