"""The rows of the fault matrix that take machines: each engine on a host of its own, and what joins them cut.

The hosts are network namespaces (tests/hosts). The same on stand-ins (test_nodes.py) and on real engines
(tests/real/test_fault_nodes.py).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from faults.asker import Asked, Question, wait_for
from faults.breaking import do
from faults.cells import WHOLE
from faults.node_cells import FRONT, NodeCell
from faults.stage import Questions, Report, Stage, Staged, Timing, brief
from hosts.bed import Bed
from hosts.network import Command, Host, Network
from vdisagg.cluster import admin
from vdisagg.errors import ControllerGone

NODES: Final = {"p0": "n1", "p1": "n2", "d0": "n3", "d1": "n4", FRONT: "n5"}
MISSED_S: Final = 5.0
"""After so long without a word of the controller, /health says so."""

CLOSED_S: Final = 1.0
"""Within this a connection's end is told."""

KEEPALIVES: Final = 3
"""ServerAliveCountMax."""


class NodesBed(Stage):
    """A running 2P2D cluster on four hosts, with the controller on another, and the front end there or on a
    sixth."""

    def __init__(
        self,
        bed: Bed,
        timing: Timing,
        questions: Questions,
        model: str,
        *,
        front: Host,
        alive_s: float,
    ) -> None:
        """`front`: where the front end is; `alive_s`: ServerAliveInterval."""
        state = bed.here.home / ".local" / "state" / "vdisagg" / "net"
        super().__init__(state, url_of(bed, front), model, timing, questions)
        self.bed = bed
        self._front = front
        self.holds_streams = model == "stub"
        self._alive_s = alive_s
        self._reports: dict[str, Report] = {}

    def host(self, instance: str) -> Host:
        """Where an instance runs."""
        return self.bed.network.hosts[NODES[instance]]

    def core(self, instance: str) -> int:
        """See Stage."""
        processes = self.host(instance).processes().items()
        found = [pid for pid, words in processes if "VLLM::EngineCore" in words]
        assert len(found) == 1, f"{instance}: {found}"
        return found[0]

    def hold_up(self, core: int) -> None:
        """See Stage."""
        os.kill(core, signal.SIGUSR1 if self.holds_streams else signal.SIGSTOP)

    def let_go(self, core: int) -> None:
        """See Stage."""
        os.kill(core, signal.SIGUSR2 if self.holds_streams else signal.SIGCONT)

    def ask(self, question: Question) -> Asked:
        """See Stage. The thread that asks is on the front end's host, so that nothing cuts it off."""
        with self._front.entered():
            return super().ask(question)

    def serves(self) -> bool:
        """See Stage."""
        with self._front.entered():
            return super().serves()

    def report(self, cell: NodeCell) -> Report:
        """What came of it; it is done when first asked for."""
        if cell.name not in self._reports:
            report = self._reports[cell.name] = Report()
            try:
                wait_for(
                    self.healthy,
                    lambda: f"not healthy before: {brief(self.status())}",
                    self.timing.restart_s,
                )
                with ExitStack() as commands:
                    self._break(cell, report, commands)
            except (AssertionError, OSError, ControllerGone) as exc:
                report.add(f"the cut itself: {exc!r}; {brief(self.status())}")
        return self._reports[cell.name]

    def _break(self, cell: NodeCell, report: Report, commands: ExitStack) -> None:
        generations = {i.name: i.generation for i in self.instances()}
        follower = self._follow(cell, commands)
        with self.staged(cell.held, unhurried=True) as staged:
            begun_at, breaking = time.time(), time.monotonic()
            self._do(cell, broken=True)
            begun = time.monotonic()
        if cell.fault == "forgotten connection":  # for ever: it heals by another one
            commands.callback(self._do, cell, broken=False)
        try:
            meanwhile = self.ask(self.questions.short)
            viewer = self._view(cell, commands)
            report.add(self._told(cell, begun_at), "idle")
            if cell.silent:
                what = f"{cell.name}: /health is not 200"
                report.add(self.told(lambda: not self.serves(), begun, MISSED_S, what), "idle")
            if viewer is not None:
                report.add(self._unreachable(cell, viewer), "idle")
            if not cell.mended_first:
                self._ended(cell, report, staged, meanwhile, begun)
                if follower is not None:
                    report.add(self._cut_short(cell, follower), "idle")
            if cell.lasts:
                time.sleep(max(0.0, begun + self.timing.stop_s - time.monotonic()))
        finally:
            if cell.fault != "forgotten connection":
                self._do(cell, broken=False)
        mended = time.monotonic()
        if cell.mended_first:
            self._ended(cell, report, staged, meanwhile, begun)
        wait_for(
            self.healthy,
            lambda: f"not healthy again: {brief(self.status())}",
            self.timing.restart_s,
        )
        report.notes.append(
            f"{cell.name}: mended after {mended - begun:.1f} s, healthy by "
            f"{time.monotonic() - mended:.1f} s later"
        )
        now = {i.name: i.generation for i in self.instances()}
        report.add("" if now == generations else f"restarted: {generations} → {now}")
        report.add(self.next_is_right(), "idle")
        report.add(self.free(lease=cell.unheard))
        if follower is not None:
            lasted_s = mended - breaking
            report.add(self._reached_again(cell, follower, lasted_s), "idle")

    def _ended(
        self, cell: NodeCell, report: Report, staged: Staged, meanwhile: Asked, begun: float
    ) -> None:
        deadline = begun + self.timing.end_s
        for what in self.ended([meanwhile], WHOLE, deadline):
            report.add(what, "idle")
        for what in self.ended(staged.held, WHOLE, deadline):
            report.add(what, "before first byte")
        for what in self.ended(staged.streams, WHOLE, deadline):
            report.add(what, "mid-stream")
        every = (*staged.streams, *staged.held, meanwhile)
        ended_s = max((one.ended_at or 0.0 for one in every), default=begun) - begun
        gaps = ", ".join(f"{one.longest_gap_s:.1f}" for one in staged.streams)
        report.notes.append(
            f"{cell.name}: last request ended {ended_s:.1f} s after; longest pauses: {gaps}"
        )

    def _do(self, cell: NodeCell, *, broken: bool) -> None:
        do(cell, self.host(cell.instance), self.host("d0"), self.bed.here, broken=broken)

    # -- a command at work ----------------------------------------------------------------------

    def _follow(self, cell: NodeCell, commands: ExitStack) -> Command | None:
        """`vdisagg logs -f` of the instance, where it is SSH that will break."""
        if cell.what != "ssh":
            return None
        command = commands.enter_context(self.bed.start("logs", cell.instance, "-f"))
        host = self.host(cell.instance)
        wait_for(
            lambda: any("logfile.py follow" in words for words in host.processes().values()),
            lambda: f"nobody follows the log there: {command.poll()}",
            30,
        )
        return command

    def _view(self, cell: NodeCell, commands: ExitStack) -> Command | None:
        """`vdisagg status`, where it should say that a node can't be reached."""
        if cell.what != "ssh" or cell.fault == "forgotten connection":
            return None
        return commands.enter_context(self.bed.start("status", "--json"))

    def _unreachable(self, cell: NodeCell, viewer: Command) -> str:
        """What is wrong with what that has said."""
        problems = json.loads(viewer.communicate(timeout=60)[0])["problems"]
        named = any(f"on {NODES[cell.instance]}: unreachable: " in problem for problem in problems)
        return "" if named else f"not named: {problems}"

    def _cut_short(self, cell: NodeCell, follower: Command) -> str:
        """What is wrong with how the command that was at work has ended: at once, or as the connection was
        given up. (When that was, the command's own clock says.)"""
        wait_for(
            lambda: follower.poll() is not None, lambda: "a command goes on", self.timing.restart_s
        )
        said = follower.communicate()[1]
        given_up = f"no sign of life for {self._alive_s * (KEEPALIVES + 1):g} s"
        why = "no sign of life" not in said if cell.fault == "kill -9" else given_up in said
        clear = follower.returncode == 1 and NODES[cell.instance] in said and why
        return "" if clear else f"not a clear error: {follower.returncode} {said}"

    def _reached_again(self, cell: NodeCell, follower: Command, lasted_s: float) -> str:
        """What is wrong with commands now. A machine that is busy may take longer to answer than `status` waits,
        and longer to mend what was broken than a connection has to bear."""
        borne = cell.mended_first and lasted_s < self._alive_s * KEEPALIVES
        if borne and follower.poll() is not None:
            return f"a command ended that could have gone on: {follower.communicate()[1]}"
        deadline = time.monotonic() + self.timing.restart_s
        while problems := self.bed.status()["problems"]:
            if time.monotonic() > deadline:
                return f"is mended, and yet: {problems}"
        return ""

    # -- what is told ---------------------------------------------------------------------------

    def _told(self, cell: NodeCell, since_at: float) -> str:
        if not cell.suspected:
            return ""
        since = time.monotonic()
        limit_s = self.timing.limit_s + 1.0

        def told() -> bool:
            if cell.what == "data path":
                status = self.status()
                return status is not None and any(
                    (link.prefill, link.decode) == ("p0", "d0") and link.state != "warm"
                    for link in status.links
                )
            if cell.instance == FRONT:
                status = self.status()
                return status is not None and status.front_end != "attached"
            return self.unused(cell.instance)

        def noted() -> bool:
            try:
                events = admin.ask(self.state, admin.Events, "events", timeout_s=2.0).events
            except ControllerGone:
                return False
            new = (e for e in events if e.at >= since_at and e.subject == cell.instance)
            return any("suspect" in event.what for event in new)

        if cell.what == "control path" and cell.fault == "kill -9":
            return self.told(noted, since, CLOSED_S, cell.name)
        return self.told(told, since, limit_s, cell.name)


def url_of(bed: Bed, front: Host) -> str:
    """Where the front end on that host is asked, there."""
    return f"http://{'127.0.0.1' if front is bed.here else front.address}:8000"


@contextmanager
def four_nodes(
    directory: Path,
    timing: Timing,
    *,
    vllm: Path,
    model: str,
    control: str,
    up_s: float,
    alive_s: float,
    front_apart: bool,
    **parts: Any,
) -> Iterator[tuple[Bed, Host]]:
    """Hosts n1 to n4 with an engine each, up; down again afterwards. With where the front end is: on n5, or
    where the commands are typed.

    `alive_s`: ServerAliveInterval of ssh_config.
    """
    with Network(directory) as network:
        bed = Bed(network, vllm=vllm)
        bed.here.write_ssh_config(
            f"ServerAliveInterval {alive_s:g}\nServerAliveCountMax {KEEPALIVES}\n"
        )
        file = bed.topology(
            bed.nodes(5 if front_apart else 4),
            control=control,
            prefill={"node": None, "instances": [{"node": "n1"}, {"node": "n2"}]},
            decode={"node": None, "instances": [{"node": "n3"}, {"node": "n4"}]},
            restart={"stopped_s": timing.stopped_s, "limit": 100},
            **({"front_end": {"node": NODES[FRONT]}} if front_apart else {}),
            **({"model": model} if model else {}),
            **parts,
        )
        try:
            bed.vdisagg("up", file, limit_s=up_s)
            yield bed, network.hosts[NODES[FRONT]] if front_apart else bed.here
        finally:
            bed.vdisagg("down")
            bed.nothing_is_left()
