"""What one node's facts mean for the plan. Pure: the plan and the facts in, findings out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdisagg.cluster.findings import Finding
from vdisagg.launch.preflight import needs
from vdisagg.plan.model import Address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vdisagg.cluster.findings import Level
    from vdisagg.launch.preflight.facts import Facts, Gpu, Gpus, Skew
    from vdisagg.plan.model import Node, Plan

GIB = 1 << 30
LEAST_DISK_BYTES = 100 << 20  # logs of one day; with less, nothing starts
LITTLE_DISK_BYTES = 2 * GIB
LITTLE_SHM_BYTES = GIB  # a container's default of 64 MiB is too small for ranks that share tensors
MOST_SKEW_S = 2.0  # more, and times in logs and in `status` can't be compared
UNSEEN_MIB = 1024  # a driver and its daemons keep a few hundred MiB of an idle GPU
MPS = "nvidia-cuda-mps-server"  # holds a little of each GPU so that others may share it


def judge(plan: Plan, node: Node, facts: Facts, skew: Skew, *, running: bool) -> list[Finding]:
    """Everything that one node's facts say. `running`: its own cluster is up and uses its GPUs."""
    return [
        *_vllm(node, facts),
        *_model(node, facts),
        *_gpus(plan, node, facts, running),
        *_ports(plan, node, facts),
        *_disk(node, facts),
        *_shm(plan, node, facts),
        *_clock(node, skew),
    ]


def _vllm(node: Node, facts: Facts) -> Iterator[Finding]:
    seen = facts.vllm
    if seen is None:
        yield Finding(node.name, "Python", f"{facts.python}, {facts.executable}", level="note")
        return
    name_it = f"name it as `python:` or `vllm:` in nodes.{node.name}"
    if seen.kind == "setup":
        said = f"the setup fails: {seen.fault}"
        next_ = f"mend `setup:` of nodes.{node.name}; try it there in `bash -e`"
        yield Finding(node.name, "setup", said, "exit code 0", next_)
    elif seen.kind == "missing":
        next_ = f"install vLLM there, or {name_it}"
        yield Finding(node.name, "vllm", seen.fault, "vLLM", next_)
    elif seen.kind == "opaque":
        yield Finding(node.name, "vllm", seen.fault, "vLLM's own script", name_it, "warning")
    elif seen.kind == "python":
        found = f"{seen.python} fails: {seen.fault}"
        yield Finding(node.name, "vllm", found, "the Python of vLLM", name_it)
    else:
        versions = ", ".join(f"{name} {value}" for name, value in seen.versions.items() if value)
        found = f"{versions or 'nothing'}; Python {seen.python_version}, {seen.python}"
        yield Finding(node.name, "vllm", found, level="note")


_MODEL_NEXT = {
    "missing": "copy the model there, or name its folder on that node's disk",
    "no-config": "copy the whole model: config.json and the tokenizer's files too",
    "offline": "download the model there first, or leave HF_HUB_OFFLINE out",
    "denied": "is `model:` spelt right? For a gated one, get access, and say `secrets: [HF_TOKEN]`",
    "unknown": "look at the spelling of `model:` and `revision`",
    "unreachable": "let the node reach the hub, or download the model there first",
}


def _model(node: Node, facts: Facts) -> Iterator[Finding]:
    seen = facts.model
    if seen is None:
        return
    if seen.kind == "unchecked":
        yield Finding(node.name, "model", seen.where, level="note")
    elif seen.kind:
        found = f"no config.json in {seen.where}" if seen.kind == "no-config" else seen.where
        yield Finding(node.name, "model", found, "the model", _MODEL_NEXT[seen.kind])
    else:
        where = {"cache": "in the hub's cache", "hub": "to be downloaded from"}.get(seen.source, "")
        yield Finding(node.name, "model", f"{where} {seen.where}".strip(), level="note")


def _gpus(plan: Plan, node: Node, facts: Facts, running: bool) -> Iterator[Finding]:
    planned = needs.planned_gpus(plan, node.name)
    seen = facts.gpus
    if not planned or seen is None:
        return
    if seen.fault:
        next_ = f"mend the driver, or say `device: cpu` in nodes.{node.name}"
        yield Finding(node.name, "GPUs", seen.fault, _span(planned), next_)
        return
    there = {gpu.index: gpu for gpu in seen.gpus}
    yield Finding(node.name, "GPUs", _kinds(seen), level="note")
    for index, instance in planned.items():
        what = f"GPU {index} of {instance}"
        if index not in there:
            found = f"the node has {_span(there)}"
            yield Finding(node.name, what, found, f"GPU {index}", "name GPUs that it has")
        elif not running:
            yield from _holders(node, what, there[index], seen)
    if len({gpu.name for gpu in seen.gpus}) > 1 and not _ordered(plan, node):
        yield Finding(
            node.name,
            "GPUs",
            f"of several kinds: {_kinds(seen)}",
            "CUDA counting as nvidia-smi does",
            "say `env: {CUDA_DEVICE_ORDER: PCI_BUS_ID}` for the node, else CUDA counts the fastest first",
            "warning",
        )


def _holders(node: Node, what: str, gpu: Gpu, seen: Gpus) -> Iterator[Finding]:
    holders = [holder for holder in seen.holders if holder.uuid == gpu.uuid]
    for holder in holders:
        harmless = MPS in holder.command
        next_ = "" if harmless else f"end it (kill {holder.pid}), or name other GPUs"
        level: Level = "warning" if harmless else "error"
        yield Finding(node.name, what, f"held by {holder}", "free", next_, level)
    if not holders and gpu.used_mib is not None and gpu.used_mib > UNSEEN_MIB:
        found = f"{gpu.used_mib} of {gpu.total_mib} MiB are in use by processes that can't be seen"
        next_ = "look on the host, outside of containers, or name other GPUs"
        yield Finding(node.name, what, found, "free", next_, "warning")


def _ordered(plan: Plan, node: Node) -> bool:
    return all(
        process.env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        for process in needs.stock_processes(plan, node.name)
        if process.kind != "front_end"
    )


def _kinds(seen: Gpus) -> str:
    count: dict[str, int] = {}
    for gpu in seen.gpus:
        count[gpu.name] = count.get(gpu.name, 0) + 1
    return ", ".join(f"{number} × {name}" for name, number in count.items()) or "none"


def _span(indices: dict[int, str] | dict[int, Gpu]) -> str:
    if not indices:
        return "no GPUs"
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, sorted(indices)))}"


def _ports(plan: Plan, node: Node, facts: Facts) -> Iterator[Finding]:
    wanted = plan.ports_of(node.name)
    for host, port, why in facts.busy:
        address = Address(host, port)
        what = f"port of {wanted.get(address, 'the cluster')}"
        if "cannot be bound" in why or "is not known" in why:
            next_ = f"say an address of that machine as `data_ip:` in nodes.{node.name}"
            yield Finding(node.name, what, f"{address}: {why}", "an address of the node", next_)
        else:
            next_ = "end that process, or set other ports (ports.first, front_end.port)"
            yield Finding(node.name, what, f"{address} is taken: {why}", "free", next_)


def _disk(node: Node, facts: Facts) -> Iterator[Finding]:
    disk = facts.disk
    if disk.fault:
        next_ = f"make it writable, or say another `work_dir:` in nodes.{node.name}"
        yield Finding(node.name, "disk", f"{disk.place} {disk.fault}", "writable", next_)
    elif disk.free_bytes < LITTLE_DISK_BYTES:
        found = f"{_size(disk.free_bytes)} free at {disk.place}"
        level: Level = "error" if disk.free_bytes < LEAST_DISK_BYTES else "warning"
        next_ = f"make room, or say another `work_dir:` in nodes.{node.name}"
        yield Finding(node.name, "disk", found, f"{_size(LITTLE_DISK_BYTES)}", next_, level)


def _shm(plan: Plan, node: Node, facts: Facts) -> Iterator[Finding]:
    if facts.shm_bytes < LITTLE_SHM_BYTES and needs.shares_memory(plan, node.name):
        found = f"{_size(facts.shm_bytes)} in all"
        next_ = "give it more (for a container: --shm-size, or --ipc=host)"
        yield Finding(node.name, "/dev/shm", found, "1 GiB or more", next_, "warning")


def _clock(node: Node, skew: Skew) -> Iterator[Finding]:
    sure_s = abs(skew.ahead_s) - skew.doubt_s
    if node.ssh is None or sure_s <= MOST_SKEW_S:
        return
    way = "ahead of" if skew.ahead_s > 0 else "behind"
    found = f"{abs(skew.ahead_s):.1f} s {way} this machine's (± {skew.doubt_s:.1f} s)"
    next_ = "set both by NTP (timedatectl set-ntp true)"
    yield Finding(node.name, "clock", found, f"within {MOST_SKEW_S:.0f} s", next_, "warning")


def _size(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB" if amount >= GIB else f"{amount / (1 << 20):.0f} MiB"
