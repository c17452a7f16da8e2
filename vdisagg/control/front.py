"""Our sockets to the front end: we play the one remote, headless engine that it waits for.

The front end binds a handshake socket and opens HTTP only when its engine is READY, so we dial it when
there is a working link and not before. It answers HELLO with one input/output pair per API server.

A front end that runs already and has lost its controller is attached to instead: its addresses are known,
it needs no handshake, and its channel (channel.py) brings what the old controller has not seen. The same
heals a connection that breaks and comes back while both processes live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import zmq

from vdisagg.control import wire
from vdisagg.control.channel import (
    ANSWER,
    Answer,
    Attach,
    Control,
    Health,
    control,
    decode_answer,
    number_frame,
    take_number,
)
from vdisagg.control.knock import Knock
from vdisagg.control.sockets import Connections, Handler, Sockets, send
from vdisagg.control.wire import Addresses
from vdisagg.errors import ProtocolError
from vdisagg.plan.model import Address

RETURN_S: Final = 1.0
"""So long may a connection be gone: where the front end's process lives, ZeroMQ is back in 0.1 s. Then
somebody has to see whether it lives: see `_is_gone`."""

LISTEN_S: Final = 5.0
"""So long may somebody listen there without a word of ZeroMQ: it is not the front end then."""

KNOCK_S: Final = 1.0
"""Between two tries to reach the place of a front end that is silent."""

ADOPT_S: Final = 5.0
"""So long is waited for a front end that should be running. To take one for dead that lives would be
final, since nobody can attach to it freshly."""

ASK_S: Final = 0.2
"""After this an attach message without an answer is sent again, then after twice as long, and so on."""

HEALTH_S: Final = 1.0
"""How often the API servers hear of our health; they miss it after 5 s."""


class FrontEvents(Protocol):
    """Who hears of what the API servers send. `api` is the API server's index."""

    def front_attached(self, api_servers: int) -> None:
        """The front end takes us for its engine; HTTP opens, or is open already."""

    def front_message(self, api: int, kind: bytes, payload: bytes, frames: Sequence[bytes]) -> None:
        """ADD, ABORT or UTILITY: each once, in order, across reconnections and controllers."""

    def front_resumed(self, api: int, last: int) -> None:
        """Outputs after number `last` have not come to vLLM: they are to be sent again, in order.

        Said by each API server when we attach, and whenever messages to it were lost. Where the next
        one sent has a higher number than `last + 1`, the API server ends: an answer would have a hole.
        """

    def front_fault(self, reason: str) -> None:
        """A message of it can't be understood, and was dropped."""

    def front_lost(self) -> None:
        """Its connection is gone, and all requests with it."""


class _ApiServer:
    """One API server's pair of sockets, and how far the messages have come.

    `back_by` is set while its connection is gone; after it a `knock`, begun at `knocked_at`, finds out
    whether anybody is there. `asked` while an attach message has no answer: when the next one is due.
    `heard` is when anything came of it last, None before its first answer or request. Times are those of
    the clock. `owed` is the number of the outputs message that it has asked for and not been sent yet.
    """

    def __init__(self, index: int, dealer: zmq.Socket[bytes], push: zmq.Socket[bytes]) -> None:
        self.index = index
        self.input = dealer
        self.output = push
        self.connections: Connections | None = None
        self.seen = 0
        self.sent = 0
        self.back_by: float | None = None
        self.knock: Knock | None = None
        self.knocked_at = 0.0
        self.open_since: float | None = None
        self.asked: float | None = None
        self.heard: float | None = None
        self.owed: int | None = None
        self.patience_s = ASK_S

    def forget_knock(self) -> None:
        """Nobody wants to know any more whether it is there."""
        if self.knock is not None:
            self.knock.close()
        self.knock = self.open_since = None

    def say(self, said: Control) -> None:
        """Send a control message."""
        send(self.output, control(said))


class Front:
    """The played engine's handshake, input and output sockets."""

    def __init__(
        self,
        sockets: Sockets,
        handshake: Address,
        events: FrontEvents,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sockets = sockets
        self._address = handshake
        self._events = events
        self._clock = clock
        self._handshake: zmq.Socket[bytes] | None = None
        self._servers: list[_ApiServer] = []
        self._addresses: Addresses | None = None
        self._adopting = False
        self._ready = b""
        self._health: Health | None = None
        self._next_health = 0.0

    @property
    def dialling(self) -> bool:
        """Whether we have said HELLO, or more."""
        return self._handshake is not None or self._addresses is not None

    @property
    def addresses(self) -> Addresses | None:
        """Where its API servers are, for a later `attach`; None while they are not known."""
        return self._addresses

    @property
    def received(self) -> tuple[int, ...]:
        """The number of the last message handed on, by API server, for a later `attach`.

        It counts the calls of `front_message`, unless messages have been lost for good.
        """
        return tuple(server.seen for server in self._servers)

    def dial(self, ready_payload: bytes) -> None:
        """Say HELLO; ZeroMQ keeps it until the front end listens. `ready_payload` is what the front
        end will take for its engine's: model length, block size, version."""
        self._ready = ready_payload
        socket = self._handshake = self._sockets.make(zmq.DEALER, identity=wire.IDENTITY)
        self._sockets.watch(socket, self._guarded(self._on_welcome))
        socket.connect(self._address.zmq)
        socket.send(wire.encode(wire.Greeting("HELLO")))

    def attach(self, addresses: Addresses, received: Sequence[int]) -> None:
        """Take a dead controller's place. `received`: the numbers of the last messages that it has
        seen, by API server. Ends in `front_attached` and a `front_resumed` for each, or `front_lost`."""
        self._adopting = True
        by = self._clock() + ADOPT_S
        for server, seen in zip(self._connect(addresses), received, strict=True):
            server.seen = seen
            server.back_by = by

    def send(
        self, api: int, payload: bytes, frames: Sequence[bytes] = (), *, seq: int | None = None
    ) -> None:
        """Send an outputs message to one API server; to one that is gone: nothing.

        `seq` is its number: 1, 2, … for each API server since the front end was dialled. Without one
        it is neither missed nor recognised when it comes again.
        """
        if api >= len(self._servers):
            return
        server = self._servers[api]
        if seq is None:
            send(server.output, [payload, *frames])
            return
        if server.owed is not None and seq > server.owed:
            lost = f"outputs {server.owed} to {seq - 1}"
            self._events.front_fault(
                f"API server {api}: {lost} are not kept any longer; it will end"
            )
            server.say(Control(first=seq))
        server.owed = None
        server.sent = max(server.sent, seq)
        send(server.output, [payload, *frames, number_frame(seq)])

    def health(self, ok: bool, reason: str = "") -> None:
        """What /health is to say; told at once when it changes, and by `tick` about once a second."""
        told, self._health = self._health, Health(ok, reason)
        if self._health != told:
            self._tell_health(self._clock())

    def tick(self, now: float) -> None:
        """Do what is due; several times a second."""
        for server in self._servers:
            if server.back_by is not None and self._is_gone(server, server.back_by, now):
                self._events.front_lost()
                return
            if server.asked is not None and now >= server.asked and server.back_by is None:
                server.patience_s *= 2
                self._ask(server)
        if now >= self._next_health:
            self._tell_health(now)

    def _is_gone(self, server: _ApiServer, back_by: float, now: float) -> bool:
        """Whether the front end is no more: its address refuses connections, or takes them and no ZeroMQ
        comes of it. One that can't be reached may live: nobody could ever attach to it freshly."""
        if now < back_by or self._addresses is None:
            return False
        if server.knock is None:
            if now >= server.knocked_at + KNOCK_S:
                server.knock = Knock(self._addresses.inputs[server.index])
                server.knocked_at = now
            return False
        answer = server.knock.answer()
        if answer == "pending":
            return False
        server.knock = None
        if answer != "open":
            server.open_since = None
        elif server.open_since is None:
            server.open_since = now
        listened_s = 0.0 if server.open_since is None else now - server.open_since
        return answer == "refused" or listened_s >= LISTEN_S

    def silent_s(self, now: float) -> float:
        """For how long an API server has said nothing, of those that have begun to serve: each is told
        something about once a second, and answers that. A process that is stopped is as silent as a
        network."""
        heard = (server.heard for server in self._servers)
        return max((now - at for at in heard if at is not None), default=0.0)

    def paused(self, pause_s: float) -> None:
        """We were stopped for so long: that is nobody's silence, and nobody was away meanwhile."""
        for server in self._servers:
            if server.heard is not None:
                server.heard += pause_s
            if server.back_by is not None:
                server.back_by += pause_s
            if server.open_since is not None:
                server.open_since += pause_s

    def hang_up(self) -> None:
        """Close everything, so that a new front end can be dialled."""
        for server in self._servers:
            if server.connections is not None:
                server.connections.close()
            server.forget_knock()
            self._sockets.forget(server.input)
            self._sockets.forget(server.output)
        if self._handshake is not None:
            self._sockets.forget(self._handshake)
        self._handshake, self._servers, self._addresses, self._adopting = None, [], None, False

    def _tell_health(self, now: float) -> None:
        self._next_health = now + HEALTH_S
        if self._health is not None:
            for server in self._servers:
                server.say(Control(health=self._health, sent=server.sent))

    def _guarded(self, handler: Handler) -> Handler:
        """What can't be understood is dropped; the other requests go on."""

        def handle() -> None:
            try:
                handler()
            except ProtocolError as exc:
                self._events.front_fault(str(exc))

        return handle

    def _on_welcome(self) -> None:
        socket = self._handshake
        if socket is None:
            return
        for payload, *_ in self._sockets.messages(socket, frames=1):
            addresses = wire.decode_welcome(payload).addresses
            if len(addresses.inputs) != len(addresses.outputs):
                raise ProtocolError("the front end names another number of inputs than of outputs")
            for server in self._connect(addresses):
                server.input.send(self._ready)
            socket.send(wire.encode(wire.Greeting("READY")))
            self._events.front_attached(len(self._servers))

    def _connect(self, addresses: Addresses) -> list[_ApiServer]:
        ways = list(zip(addresses.inputs, addresses.outputs, strict=True))
        self._addresses = addresses
        for api, (where_in, where_out) in enumerate(ways):
            dealer = self._sockets.make(zmq.DEALER, identity=wire.IDENTITY)
            server = _ApiServer(api, dealer, self._sockets.make(zmq.PUSH))
            self._servers.append(server)
            on_message = self._guarded(partial(self._on_message, server))
            self._sockets.watch(dealer, on_message, awaited=True)
            changed = partial(self._on_connection, server)
            server.connections = Connections(self._sockets, dealer, changed, dialled=True)
            dealer.connect(where_in)
            server.output.connect(where_out)
        self._next_health = 0.0
        return self._servers

    def _on_connection(self, server: _ApiServer) -> None:
        connections = server.connections
        if connections is None or not (connections.lost or server.back_by is not None):
            return
        if connections.count:
            server.back_by = None
            server.forget_knock()
            server.patience_s = ASK_S
            self._ask(server)
        elif server.back_by is None:
            server.back_by = self._clock() + RETURN_S

    def _on_message(self, server: _ApiServer) -> None:
        for kind, payload, *frames in self._sockets.messages(server.input, frames=2):
            if server.heard is not None or kind in (ANSWER, wire.ADD):  # not while it still starts
                server.heard = self._clock()
            if kind == ANSWER:
                if not self._on_answer(server, decode_answer(payload)):
                    return
                continue
            number = take_number(frames)
            if number is not None:
                if number > server.seen + 1 and server.asked is None:
                    self._ask(server)
                if number != server.seen + 1:
                    continue
                server.seen = number
            self._events.front_message(server.index, kind, payload, frames)

    def _on_answer(self, server: _ApiServer, answer: Answer) -> bool:
        """Whether it is the front end's whose messages we have seen."""
        if answer.sent < server.seen:
            self._events.front_lost()
            return False
        if answer.first is not None:
            server.asked, server.patience_s = None, ASK_S
            if answer.first > server.seen + 1:
                lost = f"messages {server.seen + 1} to {answer.first - 1}"
                self._events.front_fault(f"API server {server.index}: {lost} are lost")
                server.seen = answer.first - 1
        elif answer.sent > server.seen and server.asked is None:
            self._ask(server)
        if self._adopting:
            self._adopting = False
            self._events.front_attached(len(self._servers))
        if answer.resend:
            server.owed = answer.last + 1
            self._events.front_resumed(server.index, answer.last)
        return True

    def _ask(self, server: _ApiServer) -> None:
        """Say that we are its engine, and how far we have come."""
        server.asked = self._clock() + server.patience_s
        server.say(Control(attach=Attach(server.seen), sent=server.sent))
