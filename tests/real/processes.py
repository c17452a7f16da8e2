"""Finding processes of a test run, and the environment of stock vLLM on CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fakes import living


def processes_of(directory: Path) -> list[int]:
    """Pids of living processes that mention `directory` in environment, argv or open files.

    vLLM renames its processes, so names say nothing; but all of a cluster's processes write to a log
    in the test's own directory.
    """
    needle = str(directory)
    return [pid for pid in _pids() if pid != os.getpid() and _mentions(pid, needle)]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _mentions(pid: int, needle: str) -> bool:
    process = Path("/proc") / str(pid)
    try:
        if "State:\tZ" in (process / "status").read_text():
            return False
        if needle.encode() in (process / "cmdline").read_bytes():
            return True
        return any(name.startswith(needle) for name in living.held(pid))
    except OSError:  # it ended meanwhile
        return False


def environment_of(directory: Path) -> dict[str, str]:
    """For one plain engine: what a CPU plan gives to ours, but for what concerns KV transfer."""
    return {
        **os.environ,
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "TMPDIR": str(directory),
    }


def parents() -> dict[int, int]:
    """The parent of every process that there is."""
    found = {}
    for pid in _pids():
        try:
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[pid] = int(fields[1])
    return found


def children_of(pid: int, above: Mapping[int, int] | None = None) -> list[int]:
    """All descendants of a process, among those whose parents are known or else all that there are."""
    above = parents() if above is None else above
    found = []
    for other, parent in above.items():
        if parent == pid:
            found += [other, *children_of(other, above)]
    return found


def title_of(pid: int) -> str:
    """A process's command line, as setproctitle may have set it."""
    raw = (Path("/proc") / str(pid) / "cmdline").read_bytes()
    return raw.replace(b"\0", b" ").decode().strip()
