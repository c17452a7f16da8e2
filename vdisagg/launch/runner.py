"""What up, down, status and logs ask of a node, wherever it is: the narrow waist of launching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from vdisagg.cluster.record import Started
    from vdisagg.cluster.snapshot import Observation
    from vdisagg.plan.model import Address, Process


class Stopped(msgspec.Struct, frozen=True):
    """What came of ending a process and its group."""

    ended: tuple[int, ...]
    left: tuple[int, ...] = ()
    """Pids that even KILL did not end (stuck in the kernel)."""


class Runner(Protocol):
    """One node. All arguments and answers are plain data; every call has a deadline of its own.

    Calls raise Failure where the node cannot be asked.
    """

    def start(self, process: Process, secrets: Mapping[str, str], grace_s: float) -> Started:
        """Start a process under a guard, its switches put in place before.

        `secrets` (variable → value) join its environment and are written nowhere. Raises
        LaunchFailed when it cannot be started, or already runs.
        """

    def observe(self, process: Process) -> Observation:
        """What there is to see of the process that was last started in `process.directory`."""

    def stop(self, process: Process, grace_s: float) -> Stopped:
        """TERM to the whole group, KILL after the grace time, its guard too; idempotent.

        Also calls off a start that is still under way.
        """

    def tail(self, process: Process, lines: int) -> list[str]:
        """The last lines of the process's log; empty when there is none."""

    def follow(self, process: Process, lines: int) -> Iterator[str]:
        """The last lines of the process's log, then those that are added, for ever."""

    def busy_ports(self, addresses: Iterable[Address]) -> dict[Address, str]:
        """Which of the addresses cannot be bound, and who holds them or why."""
