"""What can be seen of a cluster at one moment, as plain values: launch makes them, view shows them."""

from __future__ import annotations

from typing import Literal

import msgspec

from vdisagg.cluster.admin import FrontState, InstanceStatus, LinkStatus, Totals
from vdisagg.cluster.record import Holder
from vdisagg.plan.model import Kind

ProcessState = Literal["never", "running", "restarting", "exited", "gone", "unreachable"]
Phase = Literal["absent", "starting", "interrupted", "stopping", "up"]
"""absent: no record. starting: an up is at work. interrupted: an up ended half-way and nobody is
at work. stopping: a down is at work."""


class Observation(msgspec.Struct, frozen=True):
    """One process as its guard's files and /proc show it.

    never: nothing was started. restarting: it has ended, and its guard will start it again. exited: its
    code or signal is known. gone: it is not alive, and no guard lived to see how it ended or, where
    `guard_alive`, its guard has not said yet. unreachable: its node did not answer, so nothing is known.
    """

    state: ProcessState
    code: int | None = None
    signal: int | None = None
    """How it ended; of one that runs and has been restarted, how its predecessor did."""
    ended_at: float | None = None
    """Unix time, by its node's clock, as all times here."""
    end_reason: str = ""
    """What its guard had against it or itself failed at, if that was it."""
    restart_at: float | None = None
    """When its guard starts it again, while the state is restarting."""
    gave_up: bool = False
    """Whether its guard does not start it any more after so many ends in a row."""
    generation: int = 1
    """Counts the starts by its guard."""
    started_at: float | None = None
    stopped: bool = False
    """Whether a process of its group is stopped by a signal."""
    pid: int | None = None
    guard_pid: int | None = None
    guard_alive: bool = False
    members: tuple[int, ...] = ()
    """Living processes of its session or group, the leader first if it lives."""
    reason: str = ""
    """Why its node did not answer."""
    lost: bool = False
    """Whether it lives although what its guard had written of it is lost."""

    @property
    def how_lost(self) -> str:
        """What that means, for people."""
        return (
            "runs on, but its directory, or process.json in it, was removed or damaged: nobody starts it "
            "again when it fails; next: down, then up, when that suits"
        )

    @property
    def how_it_ended(self) -> str:
        """For people; empty while the process runs."""
        if self.state in ("exited", "restarting"):
            return self.last_end
        if self.state == "gone":
            slow = "ended, and its guard has not said yet how"
            return slow if self.guard_alive else "gone, and its guard with it"
        if self.state == "unreachable":
            return f"not to be reached: {self.reason}"
        return ""

    @property
    def last_end(self) -> str:
        """How it, or its predecessor, ended, for people; empty where nothing has ended."""
        if self.code is None and self.signal is None:
            return ""
        how = f"exit code {self.code}" if self.code is not None else f"signal {self.signal}"
        why = f" ({self.end_reason})" if self.end_reason else ""
        return f"{how}{why}{', and its guard gave up' if self.gave_up else ''}"

    @property
    def ends(self) -> int:
        """How often it has ended under its guard, as far as that is known."""
        if self.state in ("never", "unreachable"):
            return 0
        return self.generation - (self.state == "running")


class Progress(msgspec.Struct, frozen=True):
    """How far one process, or the links, have come on the way up."""

    name: str
    stage: str
    """launching, loading, connected, ready; for a tunnel also connecting; for the links: `1/2 warm`."""
    elapsed_s: float
    """Since `up` began."""
    done: bool
    detail: str = ""


class UpResult(msgspec.Struct, frozen=True):
    """What `up` has to say when the cluster serves."""

    name: str
    url: str
    model: str
    state_file: str
    log_files: dict[str, str]
    already: bool
    """Whether it ran before, so that nothing had to be started."""
    adopted: tuple[str, ...]
    """Processes of an earlier, interrupted up that were kept."""
    elapsed_s: float
    needs_key: bool = False
    """Whether the front end asks for an API key."""
    restarted: tuple[str, ...] = ()
    """Processes of a running cluster that were dead, or hung, and were started again."""


class DownResult(msgspec.Struct, frozen=True):
    """What `down` has to say."""

    name: str
    ran: bool
    """Whether there was anything recorded."""
    ended: dict[str, tuple[int, ...]]
    """Pids that were ended, by process."""
    log_files: dict[str, str]
    not_ours: tuple[str, ...] = ()
    """Instances that somebody else started, and has to end."""

    def and_also(self, other: DownResult) -> DownResult:
        """Both together."""
        return DownResult(
            self.name,
            ran=self.ran or other.ran,
            ended={**self.ended, **other.ended},
            log_files={**self.log_files, **other.log_files},
            not_ours=(*self.not_ours, *other.not_ours),
        )


class ProcessView(msgspec.Struct, frozen=True):
    """One process in `status`."""

    name: str
    kind: Kind
    node: str
    state: str
    """The controller's word for it while that is known, else the process's own state."""
    observation: Observation
    log: str
    since: float | None = None
    detail: str = ""
    instance: InstanceStatus | None = None


class ClusterView(msgspec.Struct, frozen=True):
    """The answer to `vdisagg status`."""

    name: str
    phase: Phase
    healthy: bool
    problems: tuple[str, ...]
    """What is wrong, for people; empty when healthy."""
    state_directory: str
    url: str = ""
    model: str = ""
    topology_file: str = ""
    created: float | None = None
    holder: Holder | None = None
    """Who is at work on it (an up or a down), if anybody."""
    processes: tuple[ProcessView, ...] = ()
    controller_answers: bool = False
    front_end: FrontState | None = None
    links: tuple[LinkStatus, ...] = ()
    totals: Totals | None = None
