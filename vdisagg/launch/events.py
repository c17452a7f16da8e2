"""Asks a cluster's controller for its events: once, or on and on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdisagg.cluster import admin, happened, record
from vdisagg.errors import ControllerGone, Failure
from vdisagg.launch import far_controller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from vdisagg.cluster.admin import Event, Events
    from vdisagg.cluster.record import Record
    from vdisagg.launch.runner import RunnerFor

ASK_LIMIT_S = 2.0  # a living controller answers in milliseconds


class EventsOf:
    """The events of the cluster that was recorded in a state directory when this was made."""

    def __init__(self, state_directory: Path) -> None:
        """Raises Failure when none is recorded."""
        recorded = record.read(state_directory)
        if recorded is None:
            raise Failure(f"cluster {state_directory.name} is not up; next: `vdisagg up` it")
        self.recorded: Record = recorded
        self._directory = state_directory

    def ask(self, runner_for: RunnerFor, after: int = 0) -> Events:
        """Those with numbers above `after`. Raises ControllerGone."""
        return far_controller.ask(
            self.recorded.plan,
            self._directory,
            runner_for,
            admin.Events,
            "events",
            after=after,
            timeout_s=ASK_LIMIT_S,
        )

    def written(self) -> list[Event]:
        """What a controller on this machine has written down, also one that does not answer."""
        if far_controller.is_far(self.recorded.plan):
            return []
        try:
            return happened.read(self._directory, run=self.recorded.created).events
        except OSError:
            return []

    def is_over(self) -> bool:
        """Whether that cluster has been taken down since."""
        recorded = record.read(self._directory)
        return recorded is None or recorded.created != self.recorded.created


def follow(
    ask: Callable[[int], Events],
    *,
    is_over: Callable[[], bool],
    wait: Callable[[], None],
    say: Callable[[str], None],
) -> Iterator[list[Event]]:
    """What has happened, then what happens, until `is_over`. Between two questions it calls `wait`.

    A controller that does not answer is waited for; that is said.
    """
    after, silent = 0, False
    while not is_over():
        try:
            answer = ask(after)
        except ControllerGone as exc:
            if not silent:
                say(f"{exc}; waiting for it")
            silent = True
        else:
            if silent:
                say("the controller answers again")
            silent = False
            if answer.last < after:
                after = 0  # its files are gone, and it counts from 1 again
                continue
            if answer.events:
                yield answer.events
            after = answer.last
        wait()
