"""Joins the channel (`vdisagg_channel`) to pyzmq in an API server's process: `sitecustomize` applies it.

Three methods of zmq.sugar.socket.Socket are wrapped; asyncio sockets end up in the same ones.

- bind: every ROUTER gets ROUTER_HANDOVER, so that a new connection takes over a dead one's identity.
- send_multipart: on a ROUTER, a message [identity, one byte, payload, …] is vLLM's to its engine. It
  is numbered and kept, and waits in place while no controller is connected. (The event loop waits as
  well. There is little that it could do meanwhile; what it takes in keeps in the sockets.)
- recv_multipart: what bears the channel's marks is taken by the channel first.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import vdisagg_channel  # type: ignore[import-not-found]  # lies beside this file
import zmq  # half imported when this module is: used in the functions only

CHANNEL = vdisagg_channel.Channel()
"""Each API server is a process of its own, with one channel."""

LOCK = threading.RLock()
"""The synchronous client receives in another thread than it sends in."""


def patch(sockets: Any) -> None:
    """Patch the module zmq.sugar.socket."""
    usual_bind = sockets.Socket.bind
    usual_send = sockets.Socket.send_multipart
    usual_receive = sockets.Socket.recv_multipart
    router: Any = None  # known from vLLM's first message on it

    def bind(self: Any, addr: Any) -> Any:
        if self.getsockopt(zmq.TYPE) == zmq.ROUTER:
            self.setsockopt(zmq.ROUTER_HANDOVER, 1)
        return usual_bind(self, addr)

    def send_multipart(
        self: Any,
        msg_parts: Any,
        flags: int = 0,
        copy: bool = True,
        track: bool = False,
        **more: Any,
    ) -> Any:
        nonlocal router
        if len(msg_parts) < 3 or len(msg_parts[1]) != 1 or self.getsockopt(zmq.TYPE) != zmq.ROUTER:
            return usual_send(self, msg_parts, flags, copy, track, **more)
        tracker = None

        def post(frames: Any) -> bool:
            nonlocal tracker
            try:
                tracker = usual_send(self, frames, flags, copy, track, **more)
            except zmq.ZMQError as exc:
                if exc.errno != zmq.EHOSTUNREACH:
                    raise
                return False
            return True

        with LOCK:
            if router is not self:
                self.setsockopt(
                    zmq.ROUTER_MANDATORY, 1
                )  # not before: the handshake has no use for it
                router = self
            if not CHANNEL.send(msg_parts, post, clock=time.monotonic, sleep=time.sleep):
                raise zmq.ZMQError(zmq.EHOSTUNREACH, "no vdisagg controller is connected")
        return tracker

    def recv_multipart(self: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        parts = usual_receive(self, flags, copy, track)
        with LOCK:
            given, answers = CHANNEL.take(parts, now=time.monotonic())
            try:
                for answer in answers if router is not None else ():
                    usual_send(router, answer, zmq.NOBLOCK)
            except zmq.ZMQError:
                pass  # it will ask again when it can be reached
        if given is None:
            given = [vdisagg_channel.EMPTY_OUTPUTS]
        return [zmq.Frame(f) if isinstance(f, bytes) and not copy else f for f in given]

    sockets.Socket.bind = bind
    sockets.Socket.send_multipart = send_multipart
    sockets.Socket.recv_multipart = recv_multipart
