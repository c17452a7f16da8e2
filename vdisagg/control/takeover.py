"""What an earlier controller of this run has left: its engines, links and requests are taken up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from vdisagg.control import wire
from vdisagg.control.actions import Action
from vdisagg.control.dispatch import Dispatch
from vdisagg.control.endpoint import Endpoint
from vdisagg.control.fleet import Fleet
from vdisagg.control.recall import RecalledRequest
from vdisagg.control.saved import Saved
from vdisagg.errors import ProtocolError

ASSUME_S: Final = 3.0
"""An engine sends its ready payload as soon as it is connected; this is how long the news may take."""


class Takeover:
    """Engines and links. `payloads`: ready payloads of the engines that have loaded, by name, which is added
    to; `say(subject, what)` tells people."""

    def __init__(
        self,
        fleet: Fleet,
        endpoints: Mapping[str, Endpoint],
        payloads: dict[str, bytes],
        say: Callable[[str, str], None],
    ) -> None:
        self._fleet = fleet
        self._endpoints = endpoints
        self._payloads = payloads
        self._say = say
        self._loading: dict[str, float | None] = {}
        """Engines that were loading under the controller before us: since when they have been joined."""

    def restore(self, before: Saved, *, now: float) -> None:
        """What has loaded will be back when it dials again; what was warm is."""
        for name, instance in before.instances.items():
            ready = None
            if instance.ready is not None:
                ready = wire.decode_ready(instance.ready)
                self._payloads[name] = instance.ready
                self._endpoints[name].restore(instance.ready)
            else:
                self._loading[name] = None
            self._fleet.restore(name, instance.generation, ready, now=now)
        for pair in before.links:
            self._fleet.restore_link(pair, now=now)

    def look_at_loading(self, now: float) -> None:
        """What an engine says once may have died with the controller before us: that it has loaded."""
        for name, since in list(self._loading.items()):
            endpoint, engine = self._endpoints[name], self._fleet.engines[name]
            if engine.life.state != "connected":
                del self._loading[name]
            elif not endpoint.joined:
                self._loading[name] = None
            elif since is None:
                self._loading[name] = now
            elif now - since > ASSUME_S and self._payloads:
                self._say(
                    name, "has loaded, it seems, and told so to the controller before this one"
                )
                endpoint.assume(self._likely_payload(engine.role))

    def _likely_payload(self, role: str) -> bytes:
        """An engine's of the same role, if there is one: the plan gives all of them the same settings."""
        known = self._payloads.items()
        alike = (payload for name, payload in known if self._fleet.engines[name].role == role)
        return next(alike, next(iter(self._payloads.values())))


def adopted(
    requests: Iterable[RecalledRequest], dispatch: Dispatch, *, now: float
) -> Iterator[Action]:
    """Requests that have not ended, one after the other: what is to be done for one is asked of `dispatch`
    when it has been done for those before."""
    for request in requests:
        try:
            asked = wire.decode_add(request.payload)
        except ProtocolError as exc:
            yield from dispatch.refuse(request.api, request.request_id, str(exc))
            continue
        yield from dispatch.adopt(
            request.api, asked, request.frames, request.emitted, begun=request.begun, now=now
        )
