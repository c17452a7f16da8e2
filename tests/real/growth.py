"""What a cluster's processes hold while it is at work, memory and open files, and what of that grows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from real.processes import children_of, parents, title_of

PARTS: Final = (
    ("VLLM::EngineCore", "core"),
    ("VLLM::Worker", "worker process"),
    ("APIServer", "API server"),
    ("resource_tracker", "resource tracker"),
)
"""What vLLM's processes are called, and what they are called here."""
MAY_GROW_MIB: Final = 4.0
MAY_GROW_PART: Final = 0.04
"""An allocator's share, of what the process has already, on top of that."""
MAY_GROW_FILES: Final = 8
"""A request's connection more or less at the moment of a look, and what is opened towards an engine that
came back."""


@dataclass(frozen=True)
class Sample:
    """One look at one process."""

    at: float
    """Of the monotonic clock."""
    mib: float
    """Resident memory."""
    files: int
    """Open files and sockets."""


@dataclass
class Life:
    """One process, from when it was first seen."""

    name: str
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True)
class Growth:
    """What a process held in the middle third of a time, and in the last: the medians."""

    name: str
    mib: tuple[float, float]
    files: tuple[float, float]

    @property
    def problem(self) -> str:
        """What is wrong with that; empty where nothing is."""
        may = MAY_GROW_MIB + MAY_GROW_PART * self.mib[0]
        if self.mib[1] > self.mib[0] + may:
            return f"{self}: more than {may:.1f} MiB"
        if self.files[1] > self.files[0] + MAY_GROW_FILES:
            return f"{self}: more than {MAY_GROW_FILES} open files"
        return ""

    def __str__(self) -> str:
        before, after = self.mib
        files = "{:g}→{:g}".format(*self.files)
        return f"{self.name} {before:.1f}→{after:.1f} MiB, {files} open"


def grown(lives: Iterable[Life], begin: float, end: float) -> list[Growth]:
    """Of each process that lived through the last two thirds of that time.

    The first third is for caches to fill in.
    """
    third = (end - begin) / 3
    found = []
    for life in lives:
        middle = [s for s in life.samples if begin + third <= s.at < end - third]
        last = [s for s in life.samples if end - third <= s.at <= end]
        if not middle or not last:
            continue
        if life.samples[0].at > begin + third or last[-1].at < end - third / 4:
            continue
        mib, files = (
            (median(getattr(s, what) for s in middle), median(getattr(s, what) for s in last))
            for what in ("mib", "files")
        )
        found.append(Growth(life.name, mib, files))
    return found


def problems(found: Iterable[Growth], must: Set[str]) -> str:
    """What has grown of these, and what is not among them but must be; empty where all is well."""
    found = list(found)
    missing = sorted(must - {growth.name for growth in found})
    wrong = [growth.problem for growth in found if growth.problem]
    return "\n".join((*wrong, *(f"{name} was not compared" for name in missing)))


def lifelong(lives: Iterable[Life], name: str, *, young_s: float) -> list[float]:
    """By how many MiB each process of that name has grown since it was that old."""
    grew = []
    for life in lives:
        old = [s.mib for s in life.samples if s.at >= life.samples[0].at + young_s]
        if life.name == name and old:
            grew.append(old[-1] - old[0])
    return grew


class Census:
    """Looks at guards, and at all processes below them."""

    def __init__(self, guards: Mapping[str, int]) -> None:
        """`guards`: their pids, by the name of what each guards."""
        self._guards = guards
        self._lives: dict[tuple[int, str], Life] = {}

    def look(self, now: float) -> dict[str, int]:
        """Note what each of them holds; returns open files by the process's name."""
        files: Counter[str] = Counter()
        for pid, name in self._all():
            sample = _held_by(pid, now)
            if sample is not None:
                self._lives.setdefault((pid, name), Life(name)).samples.append(sample)
                files[name] += sample.files
        return dict(files)

    @property
    def lives(self) -> list[Life]:
        """All that have been seen."""
        return list(self._lives.values())

    def _all(self) -> Iterator[tuple[int, str]]:
        above = parents()
        for name, guard in self._guards.items():
            yield guard, f"{name} guard"
            for pid in children_of(guard, above):
                part = "" if above[pid] == guard else _part(pid)
                yield pid, f"{name} {part}".rstrip()


def _part(pid: int) -> str:
    try:
        title = title_of(pid)
    except OSError:  # it ended meanwhile
        return "child"
    return next((part for said, part in PARTS if said in title), "child")


def _held_by(pid: int, now: float) -> Sample | None:
    process = Path("/proc") / str(pid)
    try:
        pages = int((process / "statm").read_text().split()[1])
        files = sum(1 for _ in (process / "fd").iterdir())
    except OSError:
        return None
    return Sample(now, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, files) if pages else None
