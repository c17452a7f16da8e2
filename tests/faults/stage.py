"""Requests at every stage of their way, held there for as long as something is broken; and what has to hold
afterwards whatever it was: right answers, in time, and nothing left behind."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from fakes.limit import LOOK_S, Limit
from faults.asker import Asked, Ending, Question, wait_for
from faults.cells import PHASES, Phase
from vdisagg.cluster import admin
from vdisagg.errors import ControllerGone

FREE_S: Final = 2.0
"""How long blocks may stay after the last request has ended."""

REFRESH_S: Final = 0.5
"""Between two questions for fresh statistics."""

ANSWER_S: Final = 30.0
"""How long the controller is waited for where nothing is wrong with it."""


@dataclass(frozen=True)
class Timing:
    """Durations in seconds, as the topology under test has them; and how patient the test is."""

    limit_s: float
    """`heartbeat.interval_s` times `misses`."""
    stop_s: float
    """How long a process is stopped: longer than `limit_s`, shorter than `restart.stopped_s`."""
    stopped_s: float
    slack_s: float
    """What this machine may take on top of any limit."""
    restart_s: float
    """How long a process may take to be back and proved."""
    end_s: float
    """After so long every request must have ended, whatever has happened."""
    lease_s: float
    """`timeouts.lease_s`: how long prefill keeps blocks that nobody reads."""


@dataclass(frozen=True)
class Questions:
    """What is asked, and the tokens of each whole answer."""

    streams: tuple[Question, ...]
    """Long enough to be under way when something breaks."""
    held: tuple[Question, ...]
    """Asked while engines are made to wait."""
    unhurried: tuple[Question, ...]
    """As `held`, but prefill's token is not sent ahead."""
    short: Question
    right: Callable[[Question], list[int]]


@dataclass
class Report:
    """What was found wrong, by moment."""

    problems: dict[Phase, list[str]] = field(
        default_factory=lambda: {phase: [] for phase in PHASES}
    )
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, *phases: Phase) -> None:
        """Note a problem, if `what` says one."""
        for phase in phases or PHASES:
            if what:
                self.problems[phase].append(what)

    def look(self, phase: Phase) -> None:
        """Fail with all that was found wrong in that moment."""
        print(*self.notes, sep="\n")
        assert not self.problems[phase], "\n".join(self.problems[phase])


@dataclass
class Staged:
    """Requests under way when something breaks."""

    streams: list[Asked] = field(default_factory=list)
    held: list[Asked] = field(default_factory=list)


class Stage:
    """A cluster of two prefill and two decode engines, seen from its clients and its admin socket."""

    holds_streams = False
    """Whether engines that are held up speak on, so that they may be for long, and streams with them."""

    def __init__(
        self, state: Path, url: str, model: str, timing: Timing, questions: Questions
    ) -> None:
        self.state = state
        self.url = url
        self.model = model
        self.timing = timing
        self.questions = questions

    def core(self, instance: str) -> int:
        """The pid of an instance's engine core, as this process sees it."""
        raise NotImplementedError

    def hold_up(self, core: int) -> None:
        """No request gets on at this engine core any more."""
        os.kill(core, signal.SIGSTOP)

    def let_go(self, core: int) -> None:
        """They get on again."""
        os.kill(core, signal.SIGCONT)

    def ask(self, question: Question) -> Asked:
        """Send a streaming request."""
        return Asked(question, self.url, self.model, self.timing.end_s)

    # -- what the controller says ---------------------------------------------------------------

    def status(self) -> admin.ControllerStatus | None:
        """What the controller says, if there is one that answers at once."""
        try:
            return admin.ask(self.state, admin.ControllerStatus, "status", timeout_s=2.0)
        except ControllerGone:
            return None

    def instances(self) -> list[admin.InstanceStatus]:
        """All of them. Raises ControllerGone."""
        status = admin.ask(self.state, admin.ControllerStatus, "status", timeout_s=ANSWER_S)
        return status.instances

    def healthy(self) -> bool:
        """Whether everything is as after `up`, HTTP included: it opens when the front end is attached, but
        a moment later."""
        status = self.status()
        return (
            status is not None
            and status.front_end == "attached"
            and all(instance.state == "ready" for instance in status.instances)
            and all(link.state == "warm" for link in status.links)
            and self.serves()
        )

    def serves(self) -> bool:
        """Whether GET /health is answered with 200."""
        return self.health() == 200

    def health(self) -> int:
        """The status that GET /health is answered with; 0 where there is none."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def unused(self, instance: str) -> bool:
        """Whether the controller says that nothing is sent there."""
        status = self.status()
        if status is None:
            return False
        (found,) = [i for i in status.instances if i.name == instance]
        links = [k for k in status.links if instance in (k.prefill, k.decode)]
        return found.state != "ready" or all(link.state != "warm" for link in links)

    def told(self, what: Callable[[], bool], since: float, limit_s: float, name: str) -> str:
        """What is wrong, if `what` does not come true within the limit after `since`."""
        limit = Limit(since + limit_s + self.timing.slack_s - time.monotonic())
        while not what():
            if limit.over():
                return f"not told {limit_s} s after: {name}: {brief(self.status())}"
            time.sleep(0.02)
        return ""

    # -- requests at every stage ----------------------------------------------------------------

    @contextmanager
    def staged(
        self,
        role: Literal["prefill", "decode"],
        *,
        keep: int = 0,
        idle: bool = False,
        unhurried: bool = False,
    ) -> Iterator[Staged]:
        """Streams that run, and requests before their first byte, which the engines of `role` hold up
        for as long as the block lasts (but for the process `keep`, which is not made to go on).

        `unhurried`: nor does their first byte come before decode's first token.
        """
        staged = Staged()
        if idle:
            yield staged
            return
        staged.streams = [self.ask(question) for question in self.questions.streams]
        wait_for(
            lambda: all(len(one.tokens) > 3 for one in staged.streams),
            lambda: f"no streams: {[(a.ending, a.detail, len(a.tokens)) for a in staged.streams]}",
            30,
        )
        roles = {role, "decode"} if self.holds_streams else {role}
        cores = [self.core(i.name) for i in self.instances() if i.role in roles]
        for core in cores:
            self.hold_up(core)
        try:
            if self.holds_streams:  # on a machine that stood still links may be away for a moment
                wait_for(self.healthy, lambda: brief(self.status()), self.timing.restart_s)
            self._hold(staged, role, unhurried=unhurried or role == "decode")
            yield staged
        finally:
            for core in cores:
                if core != keep:
                    self.let_go(core)

    def _hold(self, staged: Staged, role: Literal["prefill", "decode"], *, unhurried: bool) -> None:
        def in_flight() -> int:
            return sum(i.in_flight for i in self.instances() if i.role == role)

        base = in_flight()
        asked = self.questions.unhurried if unhurried else self.questions.held
        staged.held = [self.ask(question) for question in asked]
        wait_for(
            lambda: in_flight() >= base + len(asked),
            lambda: f"not held: {brief(self.status())}",
            ANSWER_S if self.holds_streams else 2 * self.timing.limit_s,
        )
        early = [one for one in staged.held if one.first_at is not None]
        assert not early, "they were to be hit before their first byte"
        late = [one for one in staged.streams if one.ended_at is not None]
        assert not late, "streams are too short for this machine"

    # -- what must hold -------------------------------------------------------------------------

    def ended(
        self, asked: list[Asked], endings: frozenset[Ending], deadline: float
    ) -> Iterator[str]:
        """What is wrong with how they ended, waiting until `deadline`."""
        for one in asked:
            one.join(deadline)
            yield one.wrong(self.questions.right(one.question), endings)

    def next_is_right(self) -> str:
        """What is wrong with the answer to a new request."""
        one = self.ask(self.questions.short)
        return "".join(self.ended([one], frozenset({"whole"}), time.monotonic() + 60))

    def free(self, *, but: str = "", lease: bool = False) -> str:
        """What is left two seconds after the last request, at all engines `but` one.

        `lease`: after that has ended too, where nothing else can give blocks back. Probes come and go, so
        each engine has to be seen without blocks, but not all at the same moment.
        """
        limit_s = FREE_S + self.timing.slack_s + (self.timing.lease_s if lease else 0.0)
        limit = Limit(limit_s, look_s=REFRESH_S + LOOK_S)
        free = {but}
        status = None
        while not limit.over():
            begun = time.time()
            try:
                admin.ask(self.state, admin.Done, "refresh", timeout_s=2.0)
            except ControllerGone:
                time.sleep(0.1)
                continue
            once_more = time.monotonic() + REFRESH_S
            while time.monotonic() < once_more and (status := self.status()) is not None:
                fresh = [i for i in status.instances if (i.stats_at or 0) > begun]
                free |= {i.name for i in fresh if i.kv_blocks_used == 0}
                if free >= {i.name for i in status.instances} and status.totals.in_flight == 0:
                    return ""
                time.sleep(0.01)
        if status is None and but:
            return ""  # no controller to ask; the same is looked at again once all is well
        return f"blocks or requests are left: {brief(status)}"


def brief(status: admin.ControllerStatus | None) -> str:
    """What matters of a status, for failures."""
    if status is None:
        return "no controller answers"
    instances = [
        f"{i.name} {i.state}{f' ({i.reason})' if i.reason else ''} g{i.generation} "
        f"{i.in_flight} legs {i.kv_blocks_used} blocks"
        for i in status.instances
    ]
    links = [
        f"{k.prefill}→{k.decode} {k.state}{f' ({k.reason})' if k.reason else ''}"
        for k in status.links
    ]
    totals = status.totals
    return (
        f"front end {status.front_end}; {', '.join(instances)}; {', '.join(links)}; in flight "
        f"{totals.in_flight}, failed {totals.failed}, handles {totals.handles_held}"
    )
