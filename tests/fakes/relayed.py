"""A fake engine whose three connections to the controller go through relays, and so can be a black hole.

To the controller that looks the same as an engine core that is stopped: connections are open, and
nothing comes.
"""

from __future__ import annotations

from typing import Any

import zmq

from fakes.engine import Behaviour, FakeEngine, KvStore
from fakes.middle import Middle
from vdisagg.plan.model import Address, Instance


class RelayedEngine(FakeEngine):
    """Dials relays wherever it is told to dial the controller. `kill` closes them as well."""

    def __init__(
        self, instance: Instance, store: KvStore, *, behaviour: Behaviour | None = None
    ) -> None:
        addresses: tuple[Address, ...] = instance.control
        self.relays = {address.zmq: Middle(address) for address in addresses}
        super().__init__(instance.handshake.zmq, store, name=instance.name, behaviour=behaviour)

    def black_hole(self) -> None:
        """From now on nothing gets through in either direction."""
        for relay in self.relays.values():
            relay.black_hole()

    def heal(self) -> None:
        """Everything gets through again."""
        for relay in self.relays.values():
            relay.heal()

    def reset(self) -> None:
        """Every connection gets an RST."""
        for relay in self.relays.values():
            relay.reset()

    def kill(self) -> None:
        """See FakeEngine."""
        super().kill()
        for relay in self.relays.values():
            relay.close()

    def _serve(self, *sockets: zmq.Socket[bytes]) -> None:
        routes = {address: relay.address.zmq for address, relay in self.relays.items()}
        super()._serve(*(_Routed(socket, routes) for socket in sockets))  # type: ignore[arg-type]


class _Routed:
    """A socket that connects to the relay of an address."""

    def __init__(self, socket: zmq.Socket[bytes], routes: dict[str, str]) -> None:
        self._socket = socket
        self._routes = routes

    def connect(self, address: str) -> None:
        self._socket.connect(self._routes[address])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
