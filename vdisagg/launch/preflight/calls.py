"""Has nodes listen and call each other, all at once, and tells both ends' stories."""

from __future__ import annotations

from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from vdisagg.errors import Failure
from vdisagg.launch.background import at_once, in_background
from vdisagg.launch.preflight import routes
from vdisagg.launch.preflight.asking import ask
from vdisagg.launch.preflight.node import paths
from vdisagg.plan.model import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from vdisagg.launch.dialogue import Dialogue
    from vdisagg.launch.preflight.routes import Route

    Faults = list[tuple[str, int, str]]

HOLD_S = 40.0  # a listener's life, should nobody tell it to end
PATIENCE_S = 15.0  # a listener's interpreter may start that much later than its caller's
CALL_LIMIT_S = 5.0  # two SYNs are sent again within it (at 1 s and 3 s)
LIMIT_S = HOLD_S + 20.0
PARTING_S = 1.0  # a listener whose callers have all been there ends by itself, at once


class Called(msgspec.Struct, frozen=True):
    """What came of all calls; see `routes.judge`."""

    heard: dict[tuple[str, Address], str]
    listened: dict[tuple[str, Address], str]
    failures: dict[str, Failure]
    """Nodes that could not be asked."""


def call_all(
    some: Collection[Route],
    dialogues: Mapping[str, Dialogue],
    *,
    nonce: str,
    tick: Callable[[], None] | None = None,
) -> Called:
    """Try every route with real sockets. `nonce` is a word that nobody else knows; `tick` is called
    several times a second, and may raise to break off: listeners then end by themselves.
    """
    heard: dict[tuple[str, Address], str] = {}
    listened: dict[tuple[str, Address], str] = {}
    failures: dict[str, Failure] = {}

    def note(
        told: dict[tuple[str, Address], str], outcomes: Mapping[str, Faults | Failure]
    ) -> None:
        for node, outcome in outcomes.items():
            if isinstance(outcome, Failure):
                failures.setdefault(node, outcome)
            else:
                told |= {(node, Address(host, port)): fault for host, port, fault in outcome}

    def do(node: str, job: dict[str, Any]) -> Faults:
        answer = ask(dialogues[node], {"nonce": nonce, **job}, limit_s=LIMIT_S)
        return msgspec.convert(answer["addresses"], list[tuple[str, int, str]])

    places = routes.listening(some)
    listeners = {
        node: in_background(partial(do, node, _listen(addresses)))
        for node, addresses in places.items()
    }
    callers = {
        node: partial(do, node, _dial(node, addresses))
        for node, addresses in routes.dialling(some).items()
    }
    note(heard, at_once(callers, tick=tick))
    wait(listeners.values(), timeout=PARTING_S)
    # Somebody has not come through to these: they are told on their own machine to end.
    waiting = {
        node: partial(do, node, _dial(paths.BYE, places[node]))
        for node, listener in listeners.items()
        if not listener.done()
    }
    at_once(waiting, tick=tick)
    note(listened, at_once({node: partial(f.result) for node, f in listeners.items()}, tick=tick))
    return Called(heard, listened, failures)


def _listen(addresses: Mapping[Address, int]) -> dict[str, Any]:
    wanted = [[address.host, address.port, callers] for address, callers in addresses.items()]
    return {"step": "listen", "addresses": wanted, "hold_s": HOLD_S}


def _dial(name: str, addresses: Collection[Address]) -> dict[str, Any]:
    return {
        "step": "dial",
        "name": name,
        "targets": [[address.host, address.port] for address in addresses],
        "limit_s": CALL_LIMIT_S,
        # Who says bye has nothing to wait for: whoever listens, does.
        "patience_s": 0.0 if name == paths.BYE else PATIENCE_S,
    }
