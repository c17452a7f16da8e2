"""A soak: 2P2D on the tiny model, eight requests in flight, and every 15 s a random process is killed.

Three minutes; `SOAK_S=1200` or `make soak` for twenty. A process is only killed while it isn't the last
of its role that works: then every request has somewhere to go on, and no error is due. What a killed
front end cuts off is counted apart, since nothing can save that.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults.asker import Asked, Question, wait_for
from faults.bed import Bed
from faults.cells import Component
from faults.stage import Questions, Timing, brief
from real.ask import random_prompt
from real.conftest import cluster_at, running
from real.test_fault_matrix import whole

pytestmark = pytest.mark.real

SOAK_S = float(os.environ.get("SOAK_S", "180"))
EVERY_S = 15.0
IN_FLIGHT = 8
CALM_S = 5.0
SEED = int(os.environ.get("SOAK_SEED", "1"))
MAY_GROW_MIB = 30.0
"""Of one controller: what the allocator of a young process takes."""
MAY_GROW_DESCRIPTORS = 16
TIMING = Timing(
    limit_s=6.0,
    stop_s=0.0,
    stopped_s=20.0,
    slack_s=3.0,
    restart_s=180.0,
    end_s=90.0,
    lease_s=30.0,
)
QUESTIONS = tuple(
    Question(
        tuple(random_prompt(length, f"soak {length}")),
        tokens,
        (("logprobs", 1),) if tokens % 2 else (),
    )
    for length, tokens in ((5, 300), (128, 201), (129, 60), (300, 121), (500, 400), (700, 31))
)
MIX: tuple[tuple[Component, str], ...] = (
    ("prefill core", "p0"),
    ("prefill core", "p1"),
    ("decode core", "d0"),
    ("decode core", "d1"),
    ("worker process", "d1"),
    ("controller", "controller"),
    ("controller", "controller"),
    ("front end", "front-end"),
)


@dataclass
class Tally:
    """What has come of everything; threads add to it."""

    endings: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    longest_gap_s: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    front_down: list[tuple[float, float]] = field(default_factory=list)
    """When the front end was killed, and when it was seen to answer again."""

    def cut(self, asked: Asked) -> bool:
        """Whether a killed front end explains how this one ended."""
        end = asked.ended_at or 0.0
        return any(begin - 1 <= end and asked.asked_at <= back for begin, back in self.front_down)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    mp = {"args": {"distributed_executor_backend": "mp"}}
    cluster = cluster_at(
        tmp_path_factory.mktemp("soak"),
        "soak",
        "tiny",
        prefill={"node": "here", "count": 2},
        decode={"instances": [{"node": "here"}, {"node": "here", **mp}]},
        heartbeat={"interval_s": 2, "misses": 3},
        restart={"stopped_s": TIMING.stopped_s, "limit": 1000, "reset_s": 5},
        timeouts={"launch_s": 300, "stop_s": 10, "request_s": 60, "handover_s": 15},
    )
    for up in running(cluster):
        known = {asked: whole(up.url, up.model, asked) for asked in QUESTIONS}
        yield Bed(up, TIMING, Questions((), (), (), QUESTIONS[0], known.__getitem__))


def test_a_soak_of_kills_answers_nothing_wrong_and_nothing_grows(bed: Bed) -> None:
    tally = Tally()
    before = descriptors(bed)
    sizes: dict[int, list[float]] = {}
    stop = threading.Event()
    askers = [
        threading.Thread(target=ask_on, args=(bed, tally, stop, number), daemon=True)
        for number in range(IN_FLIGHT)
    ]
    begun = time.monotonic()
    for asker in askers:
        asker.start()
    rng = random.Random(SEED)
    due = begun + EVERY_S
    while time.monotonic() < begun + SOAK_S:
        time.sleep(1)
        note_size(bed, sizes)
        if time.monotonic() >= due:
            due += EVERY_S
            kill_one(bed, tally, rng)
    stop.set()
    for asker in askers:
        asker.join(TIMING.end_s + 30)
    assert not any(asker.is_alive() for asker in askers), "a request hangs"
    took_s = time.monotonic() - begun
    print(f"{dict(tally.endings)}, {len(tally.wrong)} wrong; now all has to get well", flush=True)
    wait_for(bed.healthy, lambda: f"not healthy again: {brief(bed.status())}", TIMING.restart_s)
    left = bed.free(lease=True)
    time.sleep(CALM_S)
    after = descriptors(bed)
    growth = [values[-1] - values[0] for values in sizes.values()]
    print(summary(tally, took_s, before, after, growth))
    assert not tally.wrong, "\n".join(tally.wrong)
    assert set(tally.endings) <= {"whole", "cut by a killed front end"}, tally.endings
    assert not left
    assert max(growth) < MAY_GROW_MIB
    for name, count in after.items():
        assert count <= before[name] + MAY_GROW_DESCRIPTORS, (before, after)
    final = Asked(QUESTIONS[0], bed.url, bed.model, 60)
    final.join(time.monotonic() + 60)
    assert not final.wrong(bed.questions.right(QUESTIONS[0]), frozenset({"whole"}))


def ask_on(bed: Bed, tally: Tally, stop: threading.Event, number: int) -> None:
    """Ask one thing after the other, and look at each answer."""
    rng = random.Random(f"{SEED} {number}")
    while not stop.is_set():
        question = rng.choice(QUESTIONS)
        asked = bed.ask(question)
        asked.join(time.monotonic() + 2 * TIMING.end_s)
        wrong = asked.wrong(bed.questions.right(question), frozenset({"whole"}))
        tally.tokens += len(asked.tokens)
        if not wrong:
            tally.endings["whole"] += 1
            tally.longest_s = max(tally.longest_s, (asked.ended_at or 0.0) - asked.asked_at)
            tally.longest_gap_s = max(tally.longest_gap_s, asked.longest_gap_s)
            continue
        half = asked.wrong(bed.questions.right(question), frozenset({"broken", "refused"}))
        if not half and tally.cut(asked):
            tally.endings["cut by a killed front end"] += 1
            time.sleep(0.5)
            continue
        tally.endings[str(asked.ending)] += 1
        tally.wrong.append(f"{time.strftime('%H:%M:%S')} {wrong}")
        print(tally.wrong[-1], flush=True)
        time.sleep(0.5)


def kill_one(bed: Bed, tally: Tally, rng: random.Random) -> None:
    """kill -9 of a random process that the cluster can do without at this moment."""
    status = bed.status()
    for component, process in rng.sample(MIX, len(MIX)):
        if component not in ("controller", "front end") and not spare(bed, process):
            continue
        if component == "front end" and (status is None or status.front_end != "attached"):
            continue
        try:
            victim = bed.pid_of(component, process)
        except (AssertionError, OSError, ValueError):  # it is only just being started
            continue
        began = time.monotonic()
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # the last kill's successor is not there yet
            continue
        print(f"{time.strftime('%H:%M:%S')} kill -9 {component} of {process}", flush=True)
        if component == "front end":
            watch_front(bed, tally, began)
        tally.kills[component] += 1
        return
    tally.skipped += 1


def spare(bed: Bed, process: str) -> bool:
    """Whether it is ready, and so is another of its role, with warm links between the rest."""
    status = bed.status()
    if status is None:
        return False
    ready = {i.name for i in status.instances if i.state == "ready"}
    rest = [
        link
        for link in status.links
        if process not in (link.prefill, link.decode) and link.state == "warm"
    ]
    return process in ready and bool(rest)


def watch_front(bed: Bed, tally: Tally, begin: float) -> None:
    """Note when HTTP is back, in a thread."""
    place = len(tally.front_down)
    tally.front_down.append((begin, float("inf")))

    def look() -> None:
        time.sleep(2)
        while True:
            tried = Asked(QUESTIONS[2], bed.url, bed.model, 60)
            tried.join(time.monotonic() + 60)
            if tried.ending == "whole":
                tally.front_down[place] = (begin, time.monotonic())
                return
            time.sleep(0.5)

    threading.Thread(target=look, daemon=True).start()


def note_size(bed: Bed, sizes: dict[int, list[float]]) -> None:
    """The controller's resident memory in MiB, by pid, once it has lived for a few seconds."""
    status = bed.status()
    if status is None or time.time() - status.started < CALM_S:
        return
    try:
        text = (Path("/proc") / str(status.pid) / "statm").read_text()
    except OSError:
        return
    size = int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    sizes.setdefault(status.pid, []).append(size)


def descriptors(bed: Bed) -> dict[str, int]:
    """Open files and sockets of each process, while all is calm."""
    found = {}
    for name in ("controller", "front-end"):
        found[name] = open_by(int(bed.started(name)["pid"]))
    for name in ("p0", "p1", "d0", "d1"):
        found[f"{name} core"] = open_by(bed.core(name))
        found[f"{name} guard"] = open_by(int(bed.started(name)["guard_pid"]))
    return found


def open_by(pid: int) -> int:
    return len(list((Path("/proc") / str(pid) / "fd").iterdir()))


def summary(
    tally: Tally,
    took_s: float,
    before: dict[str, int],
    after: dict[str, int],
    growth: list[float],
) -> str:
    """The table that a soak ends with."""
    outages = [f"{back - begin:.0f} s" for begin, back in tally.front_down]
    rows = [
        ("soak", f"{took_s:.0f} s, {IN_FLIGHT} in flight, seed {SEED}"),
        ("kills", ", ".join(f"{n} {what}" for what, n in sorted(tally.kills.items()))),
        ("not killed, as the last of its role", str(tally.skipped)),
        ("requests", ", ".join(f"{n} {what}" for what, n in sorted(tally.endings.items()))),
        ("tokens", str(tally.tokens)),
        ("wrong", str(len(tally.wrong))),
        ("longest request", f"{tally.longest_s:.1f} s"),
        ("longest pause in a stream", f"{tally.longest_gap_s:.1f} s"),
        ("HTTP away", ", ".join(outages) or "never"),
        ("controllers' memory", ", ".join(f"{mib:+.1f} MiB" for mib in growth)),
        ("descriptors", ", ".join(f"{name} {before[name]}→{after[name]}" for name in before)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n" + "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
