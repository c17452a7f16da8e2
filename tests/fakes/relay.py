"""A TCP relay that can turn into a black hole: nothing comes through, and nobody is told."""

from __future__ import annotations

import selectors
import socket
import threading


class Relay:
    """Forwards connections to `port` of this machine, from a port of its own."""

    def __init__(self, port: int) -> None:
        self.sent_back = 0
        """Bytes that have come through from `port`."""
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._hole = threading.Event()
        self._dark = threading.Event()
        self._closing = threading.Event()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._far: set[socket.socket] = set()
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def swallow(self) -> None:
        """From now on bytes vanish, both ways, and no connection is closed or made."""
        self._dark.clear()
        self._hole.set()
        assert self._dark.wait(60), "the relay's thread is gone"

    def heal(self) -> None:
        """New connections come through again; those that were swallowed stay dead and silent."""
        self._hole.clear()

    def close(self) -> None:
        """End the thread and all connections."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing.is_set():
                self._turn(selector)
        for each in (self._listener, *self._peers, *self._held):
            each.close()

    def _turn(self, selector: selectors.BaseSelector) -> None:
        readable = [key.fileobj for key, _ in selector.select(0.01)]
        if self._hole.is_set():
            for each in self._peers:
                selector.unregister(each)
            self._held += self._peers
            self._peers.clear()
            if self._listener in selector.get_map():
                selector.unregister(self._listener)  # as a SYN that is never answered
            self._dark.set()
            return
        if self._listener not in selector.get_map():
            selector.register(self._listener, selectors.EVENT_READ)
        for source in readable:
            if source is self._listener:
                self._accept(selector)
            elif isinstance(source, socket.socket) and source in self._peers:
                self._forward(selector, source)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        self._far.add(far)
        for one, other in ((near, far), (far, near)):
            self._peers[one] = other
            selector.register(one, selectors.EVENT_READ)

    def _forward(self, selector: selectors.BaseSelector, source: socket.socket) -> None:
        try:
            data = source.recv(65536)
            if data:
                self._peers[source].sendall(data)
                self.sent_back += len(data) * (source in self._far)
                return
        except OSError:
            pass
        for each in (source, self._peers[source]):
            selector.unregister(each)
            del self._peers[each]
            each.close()
