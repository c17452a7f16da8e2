"""Looks at the processes of a plan, on all its nodes at once, for as long as somebody wants to know."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TYPE_CHECKING

from vdisagg.cluster.snapshot import Observation
from vdisagg.errors import Failure
from vdisagg.launch.background import at_once, in_background
from vdisagg.launch.runner import NOTHING_STARTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vdisagg.cluster.record import Started
    from vdisagg.launch.runner import Found, RunnerFor
    from vdisagg.plan.model import Plan, Process

LOOK_LIMIT_S = 10.0  # for a node that is busy with loading; one that is there answers in 0.2 s
STRETCH_S = 1.0
TICK_S = 0.2
REST = 10.0  # times as long as the look took: a look costs its node a tenth of a core at most
SHORTEST_REST_S = 0.5  # looks are cheap, but those at many nodes add up here
LONGEST_REST_S = 3.0


def by_node(processes: Iterable[Process]) -> dict[str, list[Process]]:
    """The same processes, by the name of their node, in their order."""
    found: dict[str, list[Process]] = {}
    for process in processes:
        found.setdefault(process.node, []).append(process)
    return found


def find_all(
    runner_for: RunnerFor, folders: Mapping[str, Iterable[str]], *, tick: Callable[[], None]
) -> dict[str, list[Found] | Failure]:
    """What has been started in these folders, by node, whoever launched it: see Runner.find; or why a node
    could not be searched. `tick` is called several times a second meanwhile, and may raise."""

    def find(node: str, there: Iterable[str]) -> list[Found]:
        return runner_for(node).find(tuple(there))

    return at_once({node: partial(find, node, there) for node, there in folders.items()}, tick=tick)


class Lookout:
    """Looks at all nodes of a plan; one that is slow is waited for by nobody, and not asked twice."""

    def __init__(
        self,
        plan: Plan,
        runner_for: RunnerFor,
        started: Mapping[str, Started] = NOTHING_STARTED,
        *,
        clock: Callable[[], float] = time.monotonic,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """`started`: what is recorded of the processes, by name. `tick` is called several times a second
        while there is somebody to wait for, and may raise."""
        self._tick = tick
        self._processes = plan.processes()
        self._nodes = {
            name: _Node(name, processes, runner_for, started, clock)
            for name, processes in by_node(self._processes).items()
        }

    def look(self, limit_s: float = LOOK_LIMIT_S) -> dict[str, Observation]:
        """Every process of the plan, by name, in launch order; `unreachable` where its node fails to
        answer within the limit. That is stretched while answers of others still come in: then it is
        we who are slow, logging in to many nodes at once."""
        _wait({node.ask() for node in self._nodes.values()}, limit_s, self._tick)
        return self._in_order({name: n.answer(limit_s) for name, n in self._nodes.items()})

    def glance(self, limit_s: float = LOOK_LIMIT_S) -> dict[str, Observation]:
        """What the last answers said; whoever has rested long enough is asked again. Waits for nobody
        but those who have never answered."""
        _wait({node.ask() for node in self._nodes.values() if node.is_new}, limit_s, self._tick)
        for node in self._nodes.values():
            node.ask_if_due()
        return self._in_order({name: n.last(limit_s) for name, n in self._nodes.items()})

    def _in_order(self, seen: Mapping[str, Mapping[str, Observation]]) -> dict[str, Observation]:
        return {process.name: seen[process.node][process.name] for process in self._processes}


class _Node:
    """What one node has been asked, and has answered."""

    def __init__(
        self,
        name: str,
        processes: list[Process],
        runner_for: RunnerFor,
        started: Mapping[str, Started],
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._processes = processes
        self._runner_for = runner_for
        self._started = started
        self._clock = clock
        self._asked: Future[list[Observation]] | None = None
        self._asked_at = 0.0
        self._took_s = 0.0
        self._seen: dict[str, Observation] = {}
        self._due = 0.0

    @property
    def is_new(self) -> bool:
        """Whether nothing is known of it yet."""
        return not self._seen

    def ask(self) -> Future[list[Observation]]:
        """The question that is under way; begins one where none is."""
        if self._asked is None:
            self._asked_at = self._clock()
            self._asked = in_background(self._observe)
        return self._asked

    def ask_if_due(self) -> None:
        self._take()
        if self._clock() >= self._due:
            self.ask()

    def answer(self, limit_s: float) -> dict[str, Observation]:
        """The answer to the question that is under way; unreachable where there is none by now."""
        if not self._take():
            self._seen = self._lost(f"{self._name}: no answer within {limit_s:g} s")
        return self._seen

    def last(self, limit_s: float) -> dict[str, Observation]:
        """The last answer, as long as the next one is not late."""
        self._take()
        late = self._asked is not None and self._clock() - self._asked_at >= limit_s
        return self.answer(limit_s) if late or self.is_new else self._seen

    def _observe(self) -> list[Observation]:
        begun = self._clock()
        try:
            return self._runner_for(self._name).observe_all(self._processes, self._started)
        finally:
            self._took_s = self._clock() - begun

    def _take(self) -> bool:
        """Take the answer if it is there."""
        if self._asked is None or not self._asked.done():
            return False
        try:
            answers = self._asked.result()
            self._seen = {p.name: seen for p, seen in zip(self._processes, answers, strict=True)}
        except Failure as exc:
            self._seen = self._lost(str(exc))
        self._asked = None
        self._due = self._clock() + min(max(REST * self._took_s, SHORTEST_REST_S), LONGEST_REST_S)
        return True

    def _lost(self, reason: str) -> dict[str, Observation]:
        return {p.name: Observation("unreachable", reason=reason) for p in self._processes}


def _wait(asked: set[Future[list[Observation]]], limit_s: float, tick: Callable[[], None]) -> None:
    deadline = time.monotonic() + limit_s
    while asked and (left_s := deadline - time.monotonic()) > 0:
        done, asked = wait(asked, timeout=min(left_s, TICK_S), return_when=FIRST_COMPLETED)
        tick()
        if done:
            deadline = max(deadline, time.monotonic() + STRETCH_S)


def observe_all(
    plan: Plan,
    runner_for: RunnerFor,
    started: Mapping[str, Started] = NOTHING_STARTED,
    *,
    limit_s: float = LOOK_LIMIT_S,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Observation]:
    """One look at every process of the plan, by name, in launch order. `tick` as for a Lookout."""
    return Lookout(plan, runner_for, started, tick=tick).look(limit_s)


def unreachable(plan: Plan, observations: Mapping[str, Observation]) -> list[str]:
    """One line for each node that did not answer: what of the plan is there, and why."""
    lines = []
    for node, processes in by_node(plan.processes()).items():
        lost = [p.name for p in processes if observations[p.name].state == "unreachable"]
        if lost:
            reason = observations[lost[0]].reason
            lines.append(f"{', '.join(lost)} on {node}: unreachable: {reason}")
    return lines
