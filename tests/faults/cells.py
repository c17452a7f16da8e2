"""The fault matrix of docs/faults.md, as far as processes go: what is hit, how, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from faults.asker import Ending

Component = Literal[
    "prefill core", "decode core", "worker process", "guard", "controller", "front end"
]
Fault = Literal["kill -9", "stop", "stop for good"]
Phase = Literal["idle", "before first byte", "mid-stream"]

PHASES: Final[tuple[Phase, ...]] = ("idle", "before first byte", "mid-stream")
WHOLE: Final[frozenset[Ending]] = frozenset({"whole"})
CUT: Final[frozenset[Ending]] = frozenset({"broken"})


Tells = Literal["unused", "killed", "adopted", "unhealthy", "silent", "front end gone", "unguarded"]
"""unused: the controller says that the instance, or each of its links, is not to be used. killed: `status`
says that its guard has killed it, since it was stopped. adopted: an event says what a new controller has
taken over. unhealthy: /health answers 503. silent: `status` says that the controller does not answer. front
end gone: an event says how it ended. unguarded: `status` says that the guard is gone, and the process is not."""


@dataclass(frozen=True)
class Told:
    """What must be said, and how long after the hit at the latest: `within_s` beyond nothing, L or S."""

    what: Tells
    within_s: float
    beyond: Literal["", "L", "S"] = ""


STATUS_S: Final = 5.0
"""What `vdisagg status` takes: 1 s of waiting for the controller, and a moment on a machine at work."""
UNUSED_AT_ONCE: Final = Told("unused", 1.0)
UNUSED: Final = Told("unused", 1.0, "L")
KILLED: Final = Told("killed", 1.0, "S")
ADOPTED: Final = Told("adopted", 1.0, "L")
SILENT: Final = (Told("silent", STATUS_S), Told("unhealthy", 5.0))


@dataclass(frozen=True)
class Cell:
    """Three cells of the matrix, one per moment."""

    component: Component
    fault: Fault
    process: str
    """The process that is hit, or whose part is."""
    held: Literal["prefill", "decode"] = "prefill"
    """Which engines are made to wait, so that requests are before their first byte."""
    ends: frozenset[Ending] = WHOLE
    """How requests under way may end."""
    told: tuple[Told, ...] = ()
    """What is said of it, in the order of their limits."""
    restarted: bool = False
    """Whether another process takes its place; else it must be the same as before."""
    asks_meanwhile: bool = True
    """Whether a new request is served while the fault lasts."""
    alone: bool = field(default=False)
    """Idle is a case of its own: nothing but heartbeats can tell."""

    @property
    def name(self) -> str:
        """For test names."""
        return f"{self.component}-{self.fault}"


def _engine(component: Component, process: str, held: Literal["prefill", "decode"]) -> list[Cell]:
    return [
        Cell(component, "kill -9", process, held, told=(UNUSED_AT_ONCE,), restarted=True),
        Cell(component, "stop", process, held, told=(UNUSED,), alone=True),
        Cell(component, "stop for good", process, held, told=(UNUSED, KILLED), restarted=True),
    ]


CELLS: Final[tuple[Cell, ...]] = (
    *_engine("prefill core", "p0", "prefill"),
    *_engine("decode core", "d0", "decode"),
    *_engine("worker process", "d1", "decode"),
    Cell("controller", "kill -9", "controller", told=(ADOPTED,), restarted=True),
    Cell("controller", "stop", "controller", told=SILENT, asks_meanwhile=False),
    Cell(
        "controller",
        "stop for good",
        "controller",
        told=SILENT,
        restarted=True,
        asks_meanwhile=False,
    ),
    Cell(
        "front end",
        "kill -9",
        "front-end",
        ends=CUT,
        told=(Told("front end gone", 1.0),),
        restarted=True,
        asks_meanwhile=False,
    ),
    Cell("front end", "stop", "front-end", asks_meanwhile=False),
    Cell(
        "front end",
        "stop for good",
        "front-end",
        ends=CUT,
        told=(Told("front end gone", 1.0, "S"),),
        restarted=True,
        asks_meanwhile=False,
    ),
    Cell("guard", "stop", "p1"),
    Cell("guard", "stop for good", "p1"),
    Cell("guard", "kill -9", "p1", told=(Told("unguarded", STATUS_S),)),
)
"""A killed guard comes last: nobody starts a new one, so the cluster is not what it was."""
