"""A cluster that is hit while requests are at every stage, and the checks that hold after each hit.

The same on real engines (tests/real/test_fault_matrix.py) and on stand-ins (test_matrix.py): both are
processes that `vdisagg up` has started.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.asker import Asked, Question, wait_for
from faults.cells import PHASES, Cell, Phase
from real.conftest import RealCluster
from real.processes import children_of, title_of
from vdisagg.cluster import admin, record
from vdisagg.errors import ControllerGone

FREE_S = 2.0
"""How long blocks may stay after the last request has ended."""


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


@dataclass
class Bed:
    """A running 2P2D cluster. `right` knows the tokens of a whole answer."""

    cluster: RealCluster
    timing: Timing
    right: Callable[[Question], list[int]]
    streams: tuple[Question, ...]
    """Long enough to be under way when the hit comes."""
    held: tuple[Question, ...]
    """Asked while engines are made to wait."""
    unhurried: tuple[Question, ...]
    """As `held`, but for whom prefill's token is not sent ahead."""
    short: Question
    _reports: dict[str, Report] = field(default_factory=dict)

    # -- processes ------------------------------------------------------------------------------

    def started(self, process: str) -> dict[str, Any]:
        """What the process's guard has written down about it."""
        recorded = record.read(self.cluster.state)
        assert recorded is not None
        (found,) = [p for p in recorded.plan.processes() if p.name == process]
        return json.loads((Path(found.directory) / record.PROCESS_FILE).read_text())

    def core(self, instance: str) -> int:
        """An instance's engine core."""
        return self.below(instance, "VLLM::EngineCore")

    def below(self, instance: str, title: str) -> int:
        """A descendant of the process that the guard has started."""
        found = [p for p in children_of(self.started(instance)["pid"]) if title in title_of(p)]
        assert len(found) == 1, f"{instance}: {found} are {title}"
        return found[0]

    def victim(self, cell: Cell) -> int:
        """The pid that is hit."""
        if cell.component in ("prefill core", "decode core"):
            return self.core(cell.process)
        if cell.component == "worker process":
            return self.below(cell.process, "VLLM::Worker")
        return int(self.started(cell.process)["guard_pid" if cell.component == "guard" else "pid"])

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, question: Question) -> Asked:
        """Send a streaming request."""
        return Asked(question, self.cluster.url, self.cluster.model, self.timing.end_s)

    def status(self) -> admin.ControllerStatus | None:
        """What the controller says, if there is one that answers at once."""
        try:
            return admin.ask(self.cluster.state, admin.ControllerStatus, "status", timeout_s=0.5)
        except ControllerGone:
            return None

    def healthy(self) -> bool:
        """Whether everything is as after `up`."""
        status = self.status()
        return (
            status is not None
            and status.front_end == "attached"
            and all(instance.state == "ready" for instance in status.instances)
            and all(link.state == "warm" for link in status.links)
        )

    def in_flight(self, role: str) -> int:
        """Legs at the engines of a role."""
        status = self.status()
        assert status is not None
        return sum(i.in_flight for i in status.instances if i.role == role)

    # -- a hit ----------------------------------------------------------------------------------

    def report(self, cell: Cell) -> Report:
        """What came of a hit; it is made when first asked for."""
        if cell.name not in self._reports:
            report = self._reports[cell.name] = Report()
            if not self.healthy():
                self.again()
            try:
                if cell.alone:
                    alone = self.strike(cell, idle=True)
                    report.add("; ".join(alone.problems["idle"]), "idle")
                    report.notes += alone.notes
                loaded = self.strike(cell)
                for phase in PHASES:
                    report.add("; ".join(loaded.problems[phase]), phase)
                report.notes += loaded.notes
            except (AssertionError, OSError, ControllerGone) as exc:
                report.add(f"the hit itself: {exc!r}")
        return self._reports[cell.name]

    def again(self) -> None:
        """Down and up: what the last hit has left is not this one's fault."""
        self.cluster.down()
        self.cluster.up()
        wait_for(self.healthy, lambda: f"not healthy after up: {brief(self.status())}", 60)

    def strike(self, cell: Cell, *, idle: bool = False) -> Report:
        """Hit it, with requests at every stage or none, and look at all that must hold."""
        report = Report()
        before = self.started(cell.process)
        streams, held, hit_at, victim = self._hit(cell, idle=idle)
        meanwhile = [self.ask(self.short)] if cell.asks_meanwhile else []
        try:
            if cell.suspected:
                report.add(self._told(cell, hit_at), "idle")
            if cell.component == "guard" and cell.fault == "kill -9":
                report.add(self._guard_is_missed(cell.process), "idle")
            if cell.fault == "stop":
                time.sleep(max(0.0, hit_at + self.timing.stop_s - time.monotonic()))
        finally:
            if cell.fault == "stop":
                os.kill(victim, signal.SIGCONT)
        deadline = hit_at + self.timing.end_s
        self._ended(report, "idle", meanwhile, frozenset({"whole"}), deadline)
        self._ended(report, "before first byte", held, cell.ends, deadline)
        self._ended(report, "mid-stream", streams, cell.ends, deadline)
        ended = max((a.ended_at or 0.0 for a in (*streams, *held, *meanwhile)), default=0.0)
        gaps = [f"{a.longest_gap_s:.1f}" for a in streams]
        report.notes.append(f"{cell.name}: all ended {ended - hit_at:.1f} s after; gaps {gaps}")
        if cell.component == "guard" and cell.fault == "stop for good":
            os.kill(victim, signal.SIGCONT)
        report.add(self._free(living=True))
        report.add(self._recovered(cell, before, hit_at))
        after = self.ask(self.short)
        self._ended(report, "idle", [after], frozenset({"whole"}), time.monotonic() + 60)
        report.add(self._free())
        return report

    def _hit(self, cell: Cell, *, idle: bool) -> tuple[list[Asked], list[Asked], float, int]:
        victim = self.victim(cell)
        number = signal.SIGKILL if cell.fault == "kill -9" else signal.SIGSTOP
        if idle:
            os.kill(victim, number)
            return [], [], time.monotonic(), victim
        streams = [self.ask(question) for question in self.streams]
        wait_for(
            lambda: all(len(a.tokens) > 3 for a in streams),
            lambda: f"no streams: {[(a.ending, a.detail, len(a.tokens)) for a in streams]}",
            30,
        )
        waiting = self.unhurried if cell.held == "decode" else self.held
        names = [i.name for i in (self._plan_instances()) if i.role == cell.held]
        cores = [self.core(name) for name in names]
        for core in cores:
            os.kill(core, signal.SIGSTOP)
        try:
            base = self.in_flight(cell.held)
            held = [self.ask(question) for question in waiting]
            wait_for(
                lambda: self.in_flight(cell.held) >= base + len(held),
                lambda: f"not held: {brief(self.status())}",
                2 * self.timing.limit_s,
            )
            early = [a for a in held if a.first_at is not None]
            assert not early, "they were to be hit before their first byte"
            assert all(a.ended_at is None for a in streams), (
                "streams are too short for this machine"
            )
            os.kill(victim, number)
            hit_at = time.monotonic()
        finally:
            for core in cores:
                if core != victim:
                    os.kill(core, signal.SIGCONT)
        return streams, held, hit_at, victim

    def _plan_instances(self) -> list[admin.InstanceStatus]:
        status = self.status()
        assert status is not None
        return status.instances

    # -- what must hold -------------------------------------------------------------------------

    def _told(self, cell: Cell, hit_at: float) -> str:
        """That the controller says in time that this instance is not used."""
        limit_s = 1.0 if cell.fault == "kill -9" else self.timing.limit_s + 1.0
        while time.monotonic() < hit_at + limit_s + self.timing.slack_s:
            status = self.status()
            if status is None:
                continue
            (instance,) = [i for i in status.instances if i.name == cell.process]
            links = [k for k in status.links if cell.process in (k.prefill, k.decode)]
            if instance.state != "ready" or all(link.state != "warm" for link in links):
                return ""
            time.sleep(0.02)
        return f"{cell.process} still looks well {limit_s} s after"

    def _guard_is_missed(self, process: str) -> str:
        problems = self.cluster.view()["problems"]
        told = any("guard" in problem and process in problem for problem in problems)
        return "" if told else f"status says nothing of the guard: {problems}"

    def _ended(
        self,
        report: Report,
        phase: Phase,
        asked: list[Asked],
        endings: frozenset[Any],
        deadline: float,
    ) -> None:
        for one in asked:
            one.join(deadline)
            report.add(one.wrong(self.right(one.question), endings), phase)

    def _free(self, *, living: bool = False) -> str:
        """That no engine holds a block any more; `living`: those that are ready now."""
        deadline = time.monotonic() + FREE_S + self.timing.slack_s
        status = None
        while time.monotonic() < deadline:
            begun = time.time()
            try:
                admin.ask(self.cluster.state, admin.Done, "refresh", timeout_s=0.5)
            except ControllerGone:
                time.sleep(0.1)
                continue
            while time.monotonic() < deadline:
                status = self.status()
                if status is None:
                    break
                looked_at = [i for i in status.instances if i.state == "ready" or not living]
                if all((i.stats_at or 0) > begun for i in looked_at):
                    if status.totals.in_flight == 0 and not any(
                        i.kv_blocks_used for i in looked_at
                    ):
                        return ""
                    break
                time.sleep(0.02)
        if status is None and living:
            return ""  # no controller to ask; the same is looked at again once all is well
        return f"blocks or requests are left: {brief(status)}"

    def _recovered(self, cell: Cell, before: dict[str, Any], hit_at: float) -> str:
        """That it is back as promised, by a process of its own or the old one."""
        deadline = time.monotonic() + self.timing.restart_s

        def back() -> bool:
            now = self.started(cell.process)
            return self.healthy() and (now["pid"] != before["pid"]) == cell.restarted

        while time.monotonic() < deadline:
            try:
                if back():
                    return ""
            except (OSError, ValueError):  # its file is being replaced
                pass
            time.sleep(0.1)
        return (
            f"not back after {self.timing.restart_s} s: pid {before['pid']} → "
            f"{self.started(cell.process)['pid']}, restarted should be {cell.restarted}: "
            f"{brief(self.status())}"
        )
