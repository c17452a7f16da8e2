"""What a node tells of itself, as values: the answers of node/."""

from __future__ import annotations

import msgspec


class Disk(msgspec.Struct, frozen=True):
    """Where the cluster's folder is or will be."""

    place: str
    free_bytes: int
    fault: str
    """Why we can't write there; "" where we can."""


class Vllm(msgspec.Struct, frozen=True):
    """The node's own vLLM. `kind` is "" or what went wrong: setup, missing, opaque or python."""

    kind: str
    fault: str
    command: str
    python: str
    python_version: str
    versions: dict[str, str]
    """By distribution: vllm, torch, nixl; "" for what is not installed."""


class Model(msgspec.Struct, frozen=True):
    """The model as the node has it; `kind` is "" or what went wrong (see node/model.py)."""

    kind: str
    where: str
    source: str
    """path, cache or hub."""
    offline: bool
    files: dict[str, str]
    """SHA-256 by file name."""
    weights: str
    """Stands for the weights' names and sizes; "" where there are none to see."""
    layers: tuple[str, ...] = ()
    """Kinds of layers that keep a state, as far as config.json tells."""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU, by nvidia-smi's index."""

    index: int
    uuid: str
    name: str
    total_mib: int | None
    used_mib: int | None


class Holder(msgspec.Struct, frozen=True):
    """A process on a GPU. User and command are "" where it can't be seen."""

    uuid: str
    pid: int
    used_mib: int | None
    user: str
    command: str

    def __str__(self) -> str:
        who = ", ".join(filter(None, (self.user, self.command))) or "not visible from here"
        memory = "" if self.used_mib is None else f", {self.used_mib} MiB"
        return f"pid {self.pid} ({who}){memory}"


class Gpus(msgspec.Struct, frozen=True):
    """What nvidia-smi says; `fault` is why it says nothing."""

    fault: str
    gpus: tuple[Gpu, ...]
    holders: tuple[Holder, ...]


class Facts(msgspec.Struct, frozen=True):
    """One look at one node. Times are Unix times by the node's own clock."""

    python: str
    executable: str
    disk: Disk
    shm_bytes: int
    busy: tuple[tuple[str, int, str], ...]
    """Host, port, and who holds it or why it can't be bound."""
    vllm: Vllm | None
    model: Model | None
    gpus: Gpus | None
    begun: float
    ended: float


class Skew(msgspec.Struct, frozen=True):
    """How far a node's clock is ahead of ours, in seconds, and how sure that is (±)."""

    ahead_s: float
    doubt_s: float


def skew(facts: Facts, asked_at: float, answered_at: float) -> Skew:
    """The node's clock against ours, from the times of one question, as NTP reckons (RFC 5905, 8):
    the way there and the way back share what the node did not need itself."""
    ahead_s = ((facts.begun - asked_at) + (facts.ended - answered_at)) / 2
    doubt_s = abs((answered_at - asked_at) - (facts.ended - facts.begun)) / 2
    return Skew(ahead_s, doubt_s)
