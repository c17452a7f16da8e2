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
    suspected: bool = False
    """Whether the controller must say within the limit that this instance, or each of its links, is not
    to be used."""
    restarted: bool = False
    """Whether another process takes its place; else it must be the same as before."""
    comes_back: bool = True
    """Whether the cluster is healthy again by itself."""
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
        Cell(component, "kill -9", process, held, suspected=True, restarted=True),
        Cell(component, "stop", process, held, suspected=True, alone=True),
        Cell(component, "stop for good", process, held, suspected=True, restarted=True),
    ]


CELLS: Final[tuple[Cell, ...]] = (
    *_engine("prefill core", "p0", "prefill"),
    *_engine("decode core", "d0", "decode"),
    *_engine("worker process", "d1", "decode"),
    Cell("controller", "kill -9", "controller", restarted=True),
    Cell("controller", "stop", "controller", asks_meanwhile=False),
    Cell("controller", "stop for good", "controller", restarted=True, asks_meanwhile=False),
    Cell("front end", "kill -9", "front-end", ends=CUT, restarted=True, asks_meanwhile=False),
    Cell("front end", "stop", "front-end", asks_meanwhile=False),
    Cell("front end", "stop for good", "front-end", ends=CUT, restarted=True, asks_meanwhile=False),
    Cell("guard", "stop", "p1"),
    Cell("guard", "stop for good", "p1"),
    Cell("guard", "kill -9", "p1", comes_back=False),
)
"""A killed guard comes last: nobody starts a new one, so the cluster is not what it was."""
