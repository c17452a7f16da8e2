"""The node itself: disk, shared memory, and the steps of one look in their order."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vdisagg.launch import ports
from vdisagg.launch.preflight.node import environment, gpus, model

if TYPE_CHECKING:
    Value = dict[str, Any]


class HostPort(NamedTuple):
    """An address to bind."""

    host: str
    port: int


def look(job: Value) -> Value:
    """Everything that one node can tell by itself. Times are Unix times, by the node's clock."""
    begun = time.time()
    seen: Value = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "disk": disk(Path(job["directory"]).expanduser()),
        "shm_bytes": shm_bytes(),
        "busy": busy(job["ports"]),
        "vllm": None,
        "model": None,
        "gpus": None,
    }
    variables = dict(os.environ)
    if job["vllm"] is not None:
        wanted = job["vllm"]
        seen["vllm"], variables = environment.look(
            wanted["wrapper"], wanted["command"], wanted["env"]
        )
    if job["model"] is not None:
        wanted = job["model"]
        variables = {**variables, **job["secrets"]}
        seen["model"] = model.look(wanted["name"], wanted["revision"], wanted["cache"], variables)
    if job["gpus"]:
        seen["gpus"] = gpus.look(variables)
    return {**seen, "begun": begun, "ended": time.time()}


def main(words: list[str]) -> None:
    """`look`, with the job as JSON on stdin."""
    json.dump(look(json.load(sys.stdin)), sys.stdout)


def busy(wanted: list[list[Any]]) -> list[list[Any]]:
    """[host, port, who or why] of those that can't be bound."""
    asked = [HostPort(host, port) for host, port in wanted]
    return [[at.host, at.port, why] for at, why in ports.busy(asked).items()]


def disk(directory: Path) -> Value:
    """Free bytes where the directory is or will be, and whether we may write there."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = os.statvfs(place)
    except OSError as exc:
        return {"place": str(place), "free_bytes": 0, "fault": str(exc.strerror)}
    fault = "" if place.is_dir() else "is no directory"
    if not fault and not os.access(place, os.W_OK | os.X_OK):
        fault = "is not writable"
    return {"place": str(place), "free_bytes": free.f_bavail * free.f_frsize, "fault": fault}


def shm_bytes() -> int:
    """The size of /dev/shm; 0 where there is none."""
    try:
        seen = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return seen.f_blocks * seen.f_frsize
