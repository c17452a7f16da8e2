"""`python -m vdisagg.launch.tunnel STATE_DIRECTORY NODE`: carries a node's control connections through SSH.

The controller's three ports of each engine on the node appear there on loopback, under the same
numbers. A broken connection is made again for as long as the process lives: ZeroMQ dials again by
itself, and an engine whose connections come back is known as the same one. The node's side of the broken one
is ended first, since it may still hold the ports.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vdisagg.cluster import record
from vdisagg.cluster.logged import log_line
from vdisagg.errors import Error, Failure
from vdisagg.launch import passage
from vdisagg.launch.ssh import session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vdisagg.plan.model import Ssh

CONNECT_LIMIT_S = 20.0
LOOK_S = 0.5
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Between tries to connect; the last one is repeated."""


class Connection(session.Connection, Protocol):
    """What a tunnel asks of an SSH connection."""

    @property
    def alive(self) -> bool:
        """Whether it is there, as far as is known."""

    def remote_forward(self, port: int, local_port: int) -> None:
        """Let 127.0.0.1:`port` on the node lead to 127.0.0.1:`local_port` here."""

    def close(self) -> None:
        """End it."""


def keep(
    connect: Callable[[], Connection],
    wanted: Sequence[int],
    stopping: threading.Event,
    say: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Hold a connection with all ports forwarded until `stopping` is set. `note` is told what is wrong, and
    "" when nothing is."""
    tries = 0
    served: set[session.Session] = set()
    while not stopping.is_set():
        try:
            with closing(connect()) as connection:
                served = {one for one in served if not session.end(connection, one)}
                if (ours := session.of(connection)) is not None:
                    served.add(ours)
                for port in wanted:
                    connection.remote_forward(port, port)
                say(f"up: {len(wanted)} ports")
                note("")
                tries = 0
                while connection.alive and not stopping.wait(LOOK_S):
                    pass
            if not stopping.is_set():
                say("the connection broke; connecting again")
                note("the connection broke; connecting again")
        except Failure as exc:  # also where somebody there holds one of the ports
            say(str(exc))
            note(str(exc))
            stopping.wait(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1


def main() -> int:
    """Returns the exit code."""
    from vdisagg.launch.ssh.connect import connect

    directory, name = Path(sys.argv[1]), sys.argv[2]
    try:
        recorded = record.read(directory)
    except Error as exc:
        print(exc, file=sys.stderr)
        return exc.exit_code
    nodes = {} if recorded is None else {node.name: node for node in recorded.plan.nodes}
    if recorded is None or name not in nodes or nodes[name].ssh is None:
        print(f"{directory}: no cluster with a node {name} over SSH is recorded", file=sys.stderr)
        return 1
    ssh: Ssh | None = nodes[name].ssh
    assert ssh is not None
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())

    def say(text: str) -> None:
        log_line(f"tunnel to {name}: {text}", at=time.time())

    own = next(tunnel for tunnel in recorded.plan.tunnels if tunnel.name == f"tunnel-{name}")

    def note(fault: str) -> None:
        with contextlib.suppress(OSError):  # a full disk: what the tunnel carries goes on
            passage.write(Path(own.directory), passage.Passage(os.getpid(), fault))

    keep(
        lambda: connect(name, ssh, limit_s=CONNECT_LIMIT_S),
        recorded.plan.tunnelled().get(name, ()),
        stopping,
        say,
        note,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
