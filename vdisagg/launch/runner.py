"""What up, down, status and logs ask of a node, wherever it is: the narrow waist of launching."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from vdisagg.plan.model import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from vdisagg.cluster.record import Started
    from vdisagg.cluster.snapshot import Observation
    from vdisagg.plan.model import Address, Process, Restart

    RunnerFor = Callable[[str], "Runner"]
    """The runner of a node, by the node's name."""

NOTHING_STARTED: Final[Mapping[str, Started]] = MappingProxyType({})


class Mark(msgspec.Struct, frozen=True):
    """Who launches. It stands in every process's directory, for those who have lost the record."""

    cluster: str
    host: str
    """The machine whose `vdisagg up` it was."""
    state_directory: str
    """There, where the record was."""


class Stopped(msgspec.Struct, frozen=True):
    """What came of ending a process and its group."""

    ended: tuple[int, ...]
    left: tuple[int, ...] = ()
    """Pids that even KILL did not end (stuck in the kernel)."""


class Found(msgspec.Struct, frozen=True):
    """A process's directory as it was found on a node, whoever launched it."""

    directory: str
    name: str
    kind: Kind | None
    """None where nothing has been started yet, or by a version that did not say."""
    mark: Mark | None
    living: tuple[int, ...]
    """Pids of its group."""
    started_at: float | None = None
    """Unix time there, in seconds."""


class Runner(Protocol):
    """One node. All arguments and answers are plain data; every call has a deadline of its own.

    Calls raise Failure where the node cannot be asked.
    """

    def start(
        self,
        process: Process,
        secrets: Mapping[str, str],
        grace_s: float,
        files: Mapping[str, str] = ...,
        restart: Restart = ...,
    ) -> Started:
        """Start a process under a guard, its switches put in place before. `restart` is what the guard
        does when it fails (nothing, where not said).

        `secrets` (variable → value) join its environment and are written nowhere. `files` (path → text)
        are written into its directory first. Raises LaunchFailed when it cannot be started, or
        already runs.
        """

    def observe(self, process: Process) -> Observation:
        """What there is to see of the process that was last started in `process.directory`."""

    def observe_all(
        self, processes: Sequence[Process], started: Mapping[str, Started] = ...
    ) -> list[Observation]:
        """`observe` for each, in one go. `started`: what is recorded of them, by name, so that one whose
        files are lost is known all the same."""

    def stop(
        self, process: Process, grace_s: float, started: Mapping[str, Started] = ...
    ) -> Stopped:
        """TERM to the whole group, KILL after the grace time, its guard too; idempotent.

        Also calls off a start that is still under way.
        """

    def stop_all(
        self, processes: Sequence[Process], grace_s: float, started: Mapping[str, Started] = ...
    ) -> list[Stopped]:
        """`stop` for each, all at once. `started`: as for `observe_all`."""

    def remove(self, process: Process, names: Sequence[str]) -> None:
        """Remove files in the process's directory, in this order; those that aren't there are no fault.

        Raises Failure.
        """

    def find(self, folders: Sequence[str]) -> list[Found]:
        """What was started in any directory of these folders and may still live."""

    def tail(self, process: Process, lines: int, *, before: bool = False) -> list[str]:
        """The last lines of the process's log; empty when there is none. `before`: of the log before
        that, which the process's predecessor wrote."""

    def follow(self, process: Process, lines: int) -> Iterator[str]:
        """The last lines of the process's log, then those that are added, for ever."""

    def relay(self, process: Process, line: str, limit_s: float) -> str:
        """Send a line to the admin socket in the process's directory; the line that comes back."""

    def busy_ports(self, addresses: Iterable[Address]) -> dict[Address, str]:
        """Which of the addresses cannot be bound, and who holds them or why."""
