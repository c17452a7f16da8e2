"""Work on many nodes at once: each piece in a thread of its own, every outcome kept."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from vdisagg.errors import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Key = TypeVar("Key")
Outcome = TypeVar("Outcome")


def in_background(work: Callable[[], Outcome]) -> Future[Outcome]:
    """Begin the work at once. A thread that still waits for a node does not hold up our exit."""
    done: Future[Outcome] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as exc:  # not swallowed: whoever asks for the result gets it
            done.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return done


def at_once(
    work: Mapping[Key, Callable[[], Outcome]], *, tick: Callable[[], None] | None = None
) -> dict[Key, Outcome | Failure]:
    """Do all of it at once, and return what came of each, in the order given.

    A Failure is an outcome; anything else is raised once all have ended. `tick` is called several
    times a second meanwhile.
    """
    begun = {key: in_background(one) for key, one in work.items()}
    while wait(begun.values(), timeout=None if tick is None else 0.2).not_done:
        assert tick is not None
        tick()
    outcomes: dict[Key, Outcome | Failure] = {}
    for key, future in begun.items():
        try:
            outcomes[key] = future.result()
        except Failure as exc:
            outcomes[key] = exc
    return outcomes


def raise_all(failed: Sequence[Failure], kind: type[Failure] = Failure) -> None:
    """Raise one failure as it is, several as one of that kind; nothing where there are none."""
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise kind("\n".join(map(str, failed)))


def failures(outcomes: Mapping[Key, object]) -> list[Failure]:
    """The failures among outcomes."""
    return [outcome for outcome in outcomes.values() if isinstance(outcome, Failure)]
