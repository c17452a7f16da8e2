"""The names of what a controller keeps in its state directory for the one after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

JOURNAL_FILE: Final = "journal"
OLD_JOURNAL_FILE: Final = "journal.1"
PART_JOURNAL_FILE: Final = "journal.part"
SAVED_FILE: Final = "controller.json"
PART_SAVED_FILE: Final = "controller.json.part"

EVENTS_FILE: Final = "events.jsonl"
OLD_EVENTS_FILE: Final = "events.jsonl.1"
"""Events stay, as logs do."""

OF_A_RUN: Final = (
    PART_JOURNAL_FILE,
    OLD_JOURNAL_FILE,
    JOURNAL_FILE,
    PART_SAVED_FILE,
    SAVED_FILE,
)
"""What is of no use, and nobody's business, when the run is over: prompts' and answers' token ids stand in
the journal. In the order in which they have to go, so that no old file is taken for a young one."""


def remove(directory: Path) -> None:
    """Remove what is left of a run. Raises OSError."""
    for name in OF_A_RUN:
        (directory / name).unlink(missing_ok=True)
