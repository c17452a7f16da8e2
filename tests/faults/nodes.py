"""The rows of the fault matrix that take machines: each engine on a host of its own, and what joins them cut.

The hosts are network namespaces (tests/hosts). The same on stand-ins (test_nodes.py) and on real engines
(tests/real/test_fault_nodes.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from faults.asker import Asked, Question, wait_for
from faults.cells import WHOLE
from faults.stage import Questions, Report, Stage, Timing, brief
from hosts.bed import Bed
from hosts.network import Host, Network
from vdisagg.errors import ControllerGone

NODES: Final = {"p0": "n1", "p1": "n2", "d0": "n3", "d1": "n4"}
NOBODY: Final = "02:00:00:00:ff:ff"
"""A hardware address that the switch has no port for: frames to it are gone without a word."""


@dataclass(frozen=True)
class NodeCell:
    """Three cells of the matrix, one per moment."""

    name: str
    what: Literal["node", "data path", "ssh"]
    instance: str
    """Whose node it is."""
    held: Literal["prefill", "decode"]
    suspected: bool = True
    """Whether the controller has to say within the limit that it is not used."""
    unheard: bool = False
    """Whether prefill may have said into the hole where blocks are, so that the lease has to end."""


NODE_CELLS: Final = (
    NodeCell("node link of prefill-black hole", "node", "p0", "prefill", unheard=True),
    NodeCell("node link of decode-black hole", "node", "d0", "decode"),
    NodeCell(
        "path between prefill and decode-black hole", "data path", "p0", "prefill", unheard=True
    ),
    NodeCell("SSH of prefill-kill -9", "ssh", "p0", "prefill", suspected=False),
    NodeCell("SSH of decode-kill -9", "ssh", "d0", "decode", suspected=False),
)
TUNNEL_CELLS: Final = tuple(cell for cell in NODE_CELLS if cell.what == "ssh")
"""Where the sockets go through SSH, its end is theirs, for as long as it takes to dial again."""


class NodesBed(Stage):
    """A running 2P2D cluster on four hosts, with controller and front end on a fifth."""

    def __init__(self, bed: Bed, timing: Timing, questions: Questions, model: str) -> None:
        state = bed.here.home / ".local" / "state" / "vdisagg" / "net"
        super().__init__(state, "http://127.0.0.1:8000", model, timing, questions)
        self.bed = bed
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

    def ask(self, question: Question) -> Asked:
        """See Stage. The thread that asks is on the front end's host."""
        with self.bed.here.entered():
            return super().ask(question)

    def serves(self) -> bool:
        """See Stage."""
        with self.bed.here.entered():
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
                self._break(cell, report)
            except (AssertionError, OSError, ControllerGone) as exc:
                report.add(f"the cut itself: {exc!r}; {brief(self.status())}")
        return self._reports[cell.name]

    def _break(self, cell: NodeCell, report: Report) -> None:
        generations = {i.name: i.generation for i in self.instances()}
        with self.staged(cell.held, unhurried=True) as staged:
            self._do(cell, broken=True)
            begun = time.monotonic()
        try:
            meanwhile = self.ask(self.questions.short)
            report.add(self._told(cell, begun), "idle")
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
            if cell.what == "ssh":
                report.add(self._unreachable(cell), "idle")
            time.sleep(max(0.0, begun + self.timing.stop_s - time.monotonic()))
        finally:
            self._do(cell, broken=False)
        mended = time.monotonic()
        wait_for(
            self.healthy,
            lambda: f"not healthy again: {brief(self.status())}",
            self.timing.restart_s,
        )
        report.notes.append(f"{cell.name}: healthy {time.monotonic() - mended:.1f} s after mending")
        now = {i.name: i.generation for i in self.instances()}
        report.add("" if now == generations else f"restarted: {generations} → {now}")
        report.add(self.next_is_right(), "idle")
        report.add(self.free(lease=cell.unheard))

    def _do(self, cell: NodeCell, *, broken: bool) -> None:
        host = self.host(cell.instance)
        if cell.what == "node":
            (host.cut if broken else host.restore)()
        elif cell.what == "ssh":
            (host.sshds[0].stop if broken else host.sshds[0].start)()
        else:
            other = self.host("d0")
            for here, there in ((host, other), (other, host)):
                entry = (there.address, "dev", "eth0")
                if broken:
                    here.space.ip("neigh", "replace", *entry, "lladdr", NOBODY, "nud", "permanent")
                else:
                    here.space.ip("neigh", "del", *entry)

    def _told(self, cell: NodeCell, since: float) -> str:
        if not cell.suspected:
            return ""
        limit_s = self.timing.limit_s + 1.0

        def told() -> bool:
            if cell.what == "node":
                return self.unused(cell.instance)
            status = self.status()
            return status is not None and any(
                (link.prefill, link.decode) == ("p0", "d0") and link.state != "warm"
                for link in status.links
            )

        return self.told(told, since, limit_s, cell.name)

    def _unreachable(self, cell: NodeCell) -> str:
        """That `vdisagg status` names the node."""
        problems = self.bed.status()["problems"]
        node = NODES[cell.instance]
        return "" if any(node in problem for problem in problems) else f"not named: {problems}"


@contextmanager
def four_nodes(
    directory: Path,
    timing: Timing,
    *,
    vllm: Path,
    model: str,
    control: str,
    up_s: float,
    **parts: Any,
) -> Iterator[Bed]:
    """Hosts n1 to n4 with an engine each, up; down again afterwards."""
    with Network(directory) as network:
        bed = Bed(network, vllm=vllm)
        file = bed.topology(
            bed.nodes(4),
            control=control,
            prefill={"node": None, "instances": [{"node": "n1"}, {"node": "n2"}]},
            decode={"node": None, "instances": [{"node": "n3"}, {"node": "n4"}]},
            restart={"stopped_s": timing.stopped_s, "limit": 100},
            **({"model": model} if model else {}),
            **parts,
        )
        try:
            bed.vdisagg("up", file, limit_s=up_s)
            yield bed
        finally:
            bed.vdisagg("down")
            bed.nothing_is_left()
