"""What outlives the controller, in its state directory: the journal and the saved state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from vdisagg.cluster.leftovers import JOURNAL_FILE
from vdisagg.control import saved, wire
from vdisagg.control.fleet import Fleet
from vdisagg.control.journal import Journal
from vdisagg.control.saved import Saved, SavedFront, SavedInstance
from vdisagg.errors import Failure

ADOPTABLE: Final = ("connected", "ready", "suspect", "draining")
"""States of an instance in which an engine core has told us what it tells once only."""


class Kept:
    """Both files of one run of the cluster. What the disk does not take is said once."""

    def __init__(self, directory: Path, *, run: float, say: Callable[[str], None]) -> None:
        """`run`: Unix time at which it began; what was kept of another one is thrown away."""
        self._directory = directory
        self._run = run
        self._say = say
        self._faults: set[str] = set()
        self.had_journal = (directory / JOURNAL_FILE).exists()
        """Without one, nobody knows what the front end has been told."""
        self.journal = Journal.open(directory)
        self.before = saved.read(directory, created=run, say=say)
        """What an earlier controller of this run has saved; None: there was none."""
        if self.before is None:
            self.journal.reset()

    def save(
        self, fleet: Fleet, payloads: Mapping[str, bytes], front: wire.Addresses | None
    ) -> None:
        """What a controller after us needs to know apart from the journal. `payloads`: by instance, the
        ready payload of each that has loaded."""
        state = Saved(
            created=self._run,
            front=SavedFront(front.inputs, front.outputs) if front is not None else None,
            instances={
                engine.name: SavedInstance(
                    generation=engine.life.generation,
                    ready=payloads.get(engine.name),
                    state=engine.life.state,
                    tainted=engine.tainted,
                )
                for engine in fleet.engines.values()
                if engine.life.state in ADOPTABLE
            },
            links=list(fleet.routable()),
        )
        try:
            saved.write(self._directory, state)
        except Failure as exc:
            self._say_once(str(exc))

    def tidy(self) -> None:
        """Call often: keeps the journal short, and tells of its faults."""
        self.journal.tidy()
        self._say_once(self.journal.fault)

    def _say_once(self, fault: str) -> None:
        if fault and fault not in self._faults:
            self._faults.add(fault)
            self._say(f"{fault}; a controller after this one could not go on from here")
