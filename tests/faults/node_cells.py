"""The cells of the fault matrix that take machines: what is cut, how, and what must come of it (docs/faults.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

FRONT: Final = "front end"
"""In an instance's place: the node of the front end."""


@dataclass(frozen=True)
class NodeCell:
    """Three cells of the matrix, one per moment."""

    component: str
    fault: Literal[
        "kill -9", "stop", "stop for good", "black hole", "long black hole", "forgotten connection"
    ]
    what: Literal["node", "data path", "control path", "ssh"]
    """What is broken: a node's cable, the way to another engine, that to the controller, or its sshd."""
    instance: str
    """Whose node it is."""
    held: Literal["prefill", "decode"]
    suspected: bool = True
    """Whether the controller has to say within the limit that it is not used."""
    unheard: bool = False
    """Whether prefill may have said into the hole where blocks are, so that the lease has to end."""
    silent: bool = False
    """Whether nothing comes out of the front end before it is mended."""

    @property
    def mended_first(self) -> bool:
        """Whether it is mended before anything has ended."""
        return self.silent or (self.what, self.fault) == ("ssh", "stop")

    @property
    def lasts(self) -> bool:
        """Whether it is mended after a while only."""
        at_once = ("control path", "kill -9"), ("ssh", "forgotten connection")
        return (self.what, self.fault) not in at_once

    @property
    def name(self) -> str:
        """For test names."""
        return f"{self.component}-{self.fault}"


NODE_CELLS: Final = (
    NodeCell("node link of prefill", "black hole", "node", "p0", "prefill", unheard=True),
    NodeCell("node link of decode", "black hole", "node", "d0", "decode"),
    NodeCell(
        "path between prefill and decode", "black hole", "data path", "p0", "prefill", unheard=True
    ),
    NodeCell("node link of prefill", "kill -9", "control path", "p0", "prefill"),
    NodeCell("node link of decode", "kill -9", "control path", "d0", "decode"),
    NodeCell(
        "node link of the front end", "kill -9", "control path", FRONT, "prefill", suspected=False
    ),
    NodeCell(FRONT, "black hole", "control path", FRONT, "prefill", silent=True),
    NodeCell(FRONT, "long black hole", "control path", FRONT, "prefill", silent=True),
    NodeCell("SSH of prefill", "kill -9", "ssh", "p0", "prefill", suspected=False),
    NodeCell("SSH of decode", "stop", "ssh", "d0", "decode", suspected=False),
    NodeCell("SSH of prefill", "stop for good", "ssh", "p0", "prefill", suspected=False),
    NodeCell("SSH of decode", "black hole", "ssh", "d0", "decode", suspected=False),
)
"""With `control: direct`, and the front end on a node of its own. What becomes of SSH is the same at every node
then, so that each fault meets one of them only."""

TUNNEL_CELLS: Final = (
    NodeCell("SSH of decode", "kill -9", "ssh", "d0", "decode", suspected=False),
    NodeCell("SSH of decode", "stop", "ssh", "d0", "decode"),
    NodeCell("SSH of prefill", "stop for good", "ssh", "p0", "prefill", unheard=True),
    NodeCell("SSH of decode", "black hole", "ssh", "d0", "decode"),
    NodeCell("SSH of prefill", "forgotten connection", "ssh", "p0", "prefill", unheard=True),
)
"""With `control: tunnel`, where SSH's end is that of an engine's sockets."""
