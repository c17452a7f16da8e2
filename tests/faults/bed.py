"""A cluster whose processes are killed and stopped while requests are at every stage.

The same on real engines (tests/real/test_fault_matrix.py) and on stand-ins (test_matrix.py): both are
processes that `vdisagg up` has started.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.asker import Asked, Question, wait_for
from faults.cells import PHASES, WHOLE, Cell, Component, Tells
from faults.stage import Questions, Report, Stage, Staged, Timing, brief
from real.conftest import RealCluster
from real.processes import children_of, title_of
from vdisagg.cluster import admin, record
from vdisagg.errors import ControllerGone


class Bed(Stage):
    """A running 2P2D cluster on this machine."""

    def __init__(self, cluster: RealCluster, timing: Timing, questions: Questions) -> None:
        super().__init__(cluster.state, cluster.url, cluster.model, timing, questions)
        self.cluster = cluster
        self._reports: dict[str, Report] = {}

    # -- processes ------------------------------------------------------------------------------

    def started(self, process: str) -> dict[str, Any]:
        """What the process's guard has written down about it."""
        recorded = record.read(self.state)
        assert recorded is not None
        (found,) = [p for p in recorded.plan.processes() if p.name == process]
        written: dict[str, Any] = json.loads(
            (Path(found.directory) / record.PROCESS_FILE).read_text()
        )
        return written

    def core(self, instance: str) -> int:
        """See Stage."""
        return self.below(instance, "VLLM::EngineCore")

    def below(self, instance: str, title: str) -> int:
        """A descendant of the process that the guard has started."""
        found = [p for p in children_of(self.started(instance)["pid"]) if title in title_of(p)]
        assert len(found) == 1, f"{instance}: {found} are {title}"
        return found[0]

    def pid_of(self, component: Component, process: str) -> int:
        """Which pid is this part of that process."""
        if component in ("prefill core", "decode core"):
            return self.core(process)
        if component == "worker process":
            return self.below(process, "VLLM::Worker")
        return int(self.started(process)["guard_pid" if component == "guard" else "pid"])

    # -- a hit ----------------------------------------------------------------------------------

    def report(self, cell: Cell) -> Report:
        """What came of a hit; it is made when first asked for."""
        if cell.name not in self._reports:
            report = self._reports[cell.name] = Report()
            try:
                if not self.healthy() or self.free():
                    self._again()
                if cell.alone:
                    alone = self._strike(cell, idle=True)
                    report.add("; ".join(alone.problems["idle"]), "idle")
                    report.notes += alone.notes
                loaded = self._strike(cell)
                for phase in PHASES:
                    report.add("; ".join(loaded.problems[phase]), phase)
                report.notes += loaded.notes
            except (AssertionError, OSError, ControllerGone) as exc:
                report.add(f"the hit itself: {exc!r}; {brief(self.status())}")
        return self._reports[cell.name]

    def killed_under(self, instance: str, questions: Sequence[Question]) -> list[Asked]:
        """Streams that had begun when an instance's engine core was killed, at their end."""
        wait_for(
            self.healthy, lambda: f"not healthy: {brief(self.status())}", self.timing.restart_s
        )
        asked = [self.ask(question) for question in questions]
        wait_for(
            lambda: all(len(one.tokens) > 3 for one in asked),
            lambda: f"no streams: {[(a.ending, a.detail, len(a.tokens)) for a in asked]}",
            30,
        )
        os.kill(self.core(instance), signal.SIGKILL)
        deadline = time.monotonic() + self.timing.end_s
        for one in asked:
            one.join(deadline)
        return asked

    def _again(self) -> None:
        """What the last hit has left is not this one's fault: wait for the leases' end, else down and up."""
        with suppress(AssertionError):
            wait_for(self.healthy, str, self.timing.restart_s)
            if not self.free(lease=True):
                return
        self.cluster.down()
        self.cluster.up()
        wait_for(self.healthy, lambda: f"not healthy after up: {brief(self.status())}", 60)

    def _strike(self, cell: Cell, *, idle: bool = False) -> Report:
        """Hit it, with requests at every stage or none, and look at all that must hold."""
        report = Report()
        before = self.started(cell.process)
        victim = self.pid_of(cell.component, cell.process)
        killed = cell.fault == "kill -9"
        with self.staged(cell.held, keep=0 if killed else victim, idle=idle) as staged:
            os.kill(victim, signal.SIGKILL if killed else signal.SIGSTOP)
            hit_at = time.monotonic()
        meanwhile = [self.ask(self.questions.short)] if cell.asks_meanwhile else []
        try:
            self._look_at_told(report, cell, staged, hit_at)
            if cell.fault == "stop":
                time.sleep(max(0.0, hit_at + self.timing.stop_s - time.monotonic()))
        finally:
            if cell.fault == "stop":
                os.kill(victim, signal.SIGCONT)
        deadline = hit_at + self.timing.end_s
        for what in self.ended(meanwhile, WHOLE, deadline):
            report.add(what, "idle")
        for what in self.ended(staged.held, cell.ends, deadline):
            report.add(what, "before first byte")
        for what in self.ended(staged.streams, cell.ends, deadline):
            report.add(what, "mid-stream")
        every = (*staged.streams, *staged.held, *meanwhile)
        ended_s = max((one.ended_at or 0.0 for one in every), default=hit_at) - hit_at
        gaps = ", ".join(f"{one.longest_gap_s:.1f}" for one in staged.streams)
        report.notes.append(
            f"{cell.name}: last request ended {ended_s:.1f} s after; longest pauses: {gaps or 'idle'}"
        )
        if cell.component == "guard" and cell.fault == "stop for good":
            os.kill(victim, signal.SIGCONT)
        report.add(self.free(but=cell.process))
        report.add(self._recovered(cell, before))
        report.notes.append(f"{cell.name}: healthy {time.monotonic() - hit_at:.1f} s after")
        report.add(self.next_is_right(), "idle")
        report.add(self.free())
        return report

    def _look_at_told(self, report: Report, cell: Cell, staged: Staged, hit_at: float) -> None:
        since = time.time() - (time.monotonic() - hit_at)
        under_way = sum(one.ended_at is None for one in (*staged.streams, *staged.held))
        name = cell.process
        says: dict[Tells, Callable[[], bool]] = {
            "unused": lambda: self.unused(name),
            "killed": lambda: self._killed(since, name),
            "adopted": lambda: self._noted(
                since,
                name,
                f"taking over from an earlier controller: requests under way: {under_way},",
            ),
            "unhealthy": lambda: self.health() == 503,
            "silent": lambda: self._problem("controller does not answer"),
            "front end gone": lambda: self._noted(since, "front", "its process was ended by"),
            "unguarded": lambda: self._problem(f"{name}: its guard", "is gone; it runs on"),
        }
        beyond = {"": 0.0, "L": self.timing.limit_s, "S": self.timing.stopped_s}
        for told in cell.told:
            limit_s = beyond[told.beyond] + told.within_s
            report.add(self.told(says[told.what], hit_at, limit_s, f"{name} {told.what}"), "idle")
            report.notes.append(f"{cell.name}: {told.what} by {time.monotonic() - hit_at:.1f} s")

    def _noted(self, since: float, subject: str, what: str) -> bool:
        """Whether there is such an event, no older than that (Unix time)."""
        try:
            events = admin.ask(self.state, admin.Events, "events", timeout_s=2.0).events
        except ControllerGone:
            return False
        return any(e.at >= since and e.subject == subject and what in e.what for e in events)

    def _killed(self, since: float, process: str) -> bool:
        """Whether `vdisagg status` says that its guard has killed it, since it was stopped."""
        (found,) = [p for p in self.cluster.view()["processes"] if p["name"] == process]
        seen = found["observation"]
        return (seen["ended_at"] or 0.0) >= since and "was stopped for" in seen["end_reason"]

    def _problem(self, *words: str) -> bool:
        """Whether `vdisagg status` names one that says all of that."""
        problems = self.cluster.view()["problems"]
        return any(all(word in problem for word in words) for problem in problems)

    def _recovered(self, cell: Cell, before: dict[str, Any]) -> str:
        """That it is back as promised, by a process of its own or the old one."""
        deadline = time.monotonic() + self.timing.restart_s
        while time.monotonic() < deadline:
            try:
                changed = self.started(cell.process)["pid"] != before["pid"]
            except (OSError, ValueError):  # the file is being replaced
                changed = not cell.restarted
            if changed == cell.restarted and self.healthy():
                return ""
            time.sleep(0.1)
        now = self.started(cell.process)["pid"]
        return (
            f"not back after {self.timing.restart_s} s: pid {before['pid']} → {now}, "
            f"restarted should be {cell.restarted}: {brief(self.status())}"
        )
