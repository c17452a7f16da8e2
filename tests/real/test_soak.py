"""A soak: 2P2D on the tiny model, eight requests in flight, and every 15 s a random process is killed.

Three minutes; `SOAK_S=1200` or `make soak` for twenty. A process is only killed while it isn't the last
of its role that works: then every request has somewhere to go on, and no error is due. What a killed
front end cuts off is counted apart, since nothing can save that.

In the last quarter only one engine of each role is killed, and all others live on under load: whatever
lives through most of that time must not grow, nor must guards in the whole soak.
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

import pytest

from faults.asker import Asked, Question, wait_for
from faults.bed import Bed
from faults.cells import Component
from faults.stage import Questions, Timing, brief
from real.ask import random_prompt
from real.conftest import cluster_at, running
from real.growth import Census, Growth, grown, lifelong, problems
from real.test_fault_matrix import whole

pytestmark = pytest.mark.real

SOAK_S = float(os.environ.get("SOAK_S", "180"))
EVERY_S = 15.0
IN_FLIGHT = 8
CALM_S = 5.0
SEED = int(os.environ.get("SOAK_SEED", "1"))
MAY_GROW_MIB = 30.0
"""Of one controller in all its life: what the allocator of a young process takes."""
MAY_GROW_DESCRIPTORS = 16
TIMING = Timing(
    limit_s=6.0,
    stop_s=0.0,
    stopped_s=20.0,
    slack_s=3.0,
    restart_s=300.0,
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
Mix = tuple[tuple[Component, str], ...]
MIX: Mix = (
    ("prefill core", "p0"),
    ("prefill core", "p1"),
    ("decode core", "d0"),
    ("decode core", "d1"),
    ("worker process", "d1"),
    ("controller", "controller"),
    ("controller", "controller"),
    ("front end", "front-end"),
)
AT_LAST: Mix = (("prefill core", "p1"), ("decode core", "d1"), ("worker process", "d1"))
"""What is killed in the last quarter."""
PROCESSES = ("controller", "front-end", "p0", "p1", "d0", "d1")
GUARDS = frozenset(f"{name} guard" for name in PROCESSES)
LIVE_ON = GUARDS | {"controller", "front-end", "p0", "p0 core", "d0", "d0 core"}
"""What has to be compared at the end."""


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
    census = Census({name: int(bed.started(name)["guard_pid"]) for name in PROCESSES})
    before = census.look(time.monotonic())
    stop = threading.Event()
    askers = [
        threading.Thread(target=ask_on, args=(bed, tally, stop, number), daemon=True)
        for number in range(IN_FLIGHT)
    ]
    begun = time.monotonic()
    for asker in askers:
        asker.start()
    rng = random.Random(SEED)
    kill_on(bed, tally, census, rng, MIX, 0.75 * SOAK_S)
    get_well(bed)
    print(f"{time.strftime('%H:%M:%S')} all is well; the last quarter begins", flush=True)
    last_quarter = time.monotonic()
    kill_on(bed, tally, census, rng, AT_LAST, 0.25 * SOAK_S)
    over = time.monotonic()
    stop.set()
    for asker in askers:
        asker.join(TIMING.end_s + 30)
    assert not any(asker.is_alive() for asker in askers), "a request hangs"
    took_s = time.monotonic() - begun
    print(f"{dict(tally.endings)}, {len(tally.wrong)} wrong; now all has to get well", flush=True)
    get_well(bed)
    left = bed.free(lease=True)
    time.sleep(CALM_S)
    after = census.look(time.monotonic())
    controllers = lifelong(census.lives, "controller", young_s=CALM_S)
    growths = {
        "whole soak": grown((life for life in census.lives if life.name in GUARDS), begun, over),
        "last quarter": grown(census.lives, last_quarter, over),
    }
    print(summary(tally, took_s, before, after, controllers, growths))
    assert not tally.wrong, "\n".join(tally.wrong)
    assert set(tally.endings) <= {"whole", "cut by a killed front end"}, tally.endings
    assert not left
    assert max(controllers) < MAY_GROW_MIB
    for name in before.keys() & after.keys() | LIVE_ON:
        assert after[name] <= before[name] + MAY_GROW_DESCRIPTORS, (name, before, after)
    assert not problems(growths["whole soak"], GUARDS)
    assert not problems(growths["last quarter"], LIVE_ON)
    assert not bed.next_is_right()


def kill_on(
    bed: Bed,
    tally: Tally,
    census: Census,
    rng: random.Random,
    mix: Mix,
    for_s: float,
) -> None:
    """A kill every 15 s for so long, and every second a look at what all of them hold."""
    begun = time.monotonic()
    due = begun + EVERY_S
    while time.monotonic() < begun + for_s:
        time.sleep(1)
        census.look(time.monotonic())
        if time.monotonic() >= due:
            due += EVERY_S
            kill_one(bed, tally, rng, mix)
    census.look(time.monotonic())  # a kill may have taken long


def get_well(bed: Bed) -> None:
    """Wait until all is as after `up`."""
    wait_for(bed.healthy, lambda: f"not healthy again: {brief(bed.status())}", TIMING.restart_s)


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


def kill_one(bed: Bed, tally: Tally, rng: random.Random, mix: Mix) -> None:
    """kill -9 of a random process of these that the cluster can do without at this moment."""
    status = bed.status()
    for component, process in rng.sample(mix, len(mix)):
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


def summary(
    tally: Tally,
    took_s: float,
    before: dict[str, int],
    after: dict[str, int],
    controllers: list[float],
    growths: dict[str, list[Growth]],
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
        ("controllers' memory", ", ".join(f"{mib:+.1f} MiB" for mib in controllers)),
        ("descriptors", ", ".join(f"{n} {before[n]}→{after[n]}" for n in before if n in after)),
        *(
            (f"middle→last third, {when}" if place == 0 else "", str(growth))
            for when, found in growths.items()
            for place, growth in enumerate(found)
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n" + "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
