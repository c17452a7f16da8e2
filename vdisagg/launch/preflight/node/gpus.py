"""The GPUs that nvidia-smi sees, and who holds them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Value = dict[str, Any]

LIMIT_S = 20.0  # without its persistence daemon a driver wakes 8 GPUs in several seconds
FORMAT = "--format=csv,noheader,nounits"
QUERY_GPUS = ("--query-gpu=index,uuid,memory.total,memory.used,name", FORMAT)
QUERY_HOLDERS = ("--query-compute-apps=gpu_uuid,pid,used_memory", FORMAT)


def look(environment: Mapping[str, str]) -> Value:
    """`fault` says why nothing is known ("" where it is); `gpus` and `holders` as they are parsed."""
    path = environment.get("PATH", os.defpath)
    found = shutil.which("nvidia-smi", path=path) or shutil.which("nvidia-smi", path="/usr/bin")
    if found is None:
        return {"fault": "nvidia-smi is not on PATH", "gpus": [], "holders": []}
    try:
        gpus = parse_gpus(ask(found, QUERY_GPUS))
        holders = [describe(holder) for holder in parse_holders(ask(found, QUERY_HOLDERS))]
    except ValueError as exc:
        return {"fault": str(exc), "gpus": [], "holders": []}
    return {"fault": "", "gpus": gpus, "holders": holders}


def ask(executable: str, query: tuple[str, ...]) -> str:
    """What it prints. Raises ValueError with its own words where it fails."""
    try:
        done = subprocess.run(
            [executable, *query],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"nvidia-smi did not answer within {LIMIT_S:.0f} s") from None
    except OSError as exc:
        raise ValueError(f"{executable}: {exc.strerror}") from None
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        # It tells its faults on stdout, the important one first.
        said = (text.strip() or "nothing").splitlines()[0]
        raise ValueError(f"nvidia-smi ends with exit code {done.returncode}: {said}")
    return text


def parse_gpus(text: str) -> list[Value]:
    """Rows of QUERY_GPUS. Raises ValueError for what is none; a figure that is kept back is None."""
    gpus = []
    for fields in rows(text, 5):
        if not fields[0].isdigit():
            raise ValueError(f"nvidia-smi answered {', '.join(fields)!r}")
        total, used = number(fields[2]), number(fields[3])
        gpus.append(
            {
                "index": int(fields[0]),
                "uuid": fields[1],
                "name": fields[4],
                "total_mib": total,
                "used_mib": used,
            }
        )
    return gpus


def parse_holders(text: str) -> list[Value]:
    """Rows of QUERY_HOLDERS: one for each process and GPU."""
    holders = []
    for uuid, pid, used in rows(text, 3):
        if not pid.isdigit():
            raise ValueError(f"nvidia-smi answered {uuid}, {pid}, {used}")
        holders.append({"uuid": uuid, "pid": int(pid), "used_mib": number(used)})
    return holders


def rows(text: str, width: int) -> list[list[str]]:
    """Lines as fields; the last one may hold commas. Raises ValueError for a line that has too few."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("No devices"):  # "No devices were found"
            continue
        fields = [field.strip() for field in line.split(",", width - 1)]
        if len(fields) != width:
            raise ValueError(f"nvidia-smi answered {line.strip()!r}")
        found.append(fields)
    return found


def number(field: str) -> int | None:
    """MiB; None for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` and their like."""
    return int(field) if field.isdigit() else None


def describe(holder: Value) -> Value:
    """With user and command of the pid, "" where it can't be seen (another container's, say)."""
    place = Path("/proc") / str(holder["pid"])
    user = command = ""
    try:
        owner = place.stat().st_uid
        words = (place / "cmdline").read_bytes().split(b"\0")
        command = b" ".join(words).decode(errors="replace").strip()
        command = command or (place / "comm").read_text().strip()
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = f"uid {owner}"
    except OSError:
        pass
    return {**holder, "user": user, "command": command[:80]}
