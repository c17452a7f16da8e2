"""What serves a connection on the node's side, and its end through another."""

from __future__ import annotations

import os

import pytest

from hosts.sshd import Sshd, free_port
from vdisagg.errors import Failure
from vdisagg.launch.ssh import session
from vdisagg.launch.ssh.connect import connect
from vdisagg.launch.ssh.connection import Connection
from vdisagg.plan.model import Ssh


def another(sshd: Sshd) -> Connection:
    return connect("n1", Ssh("node"), config=sshd.ssh_config("node"))


def test_each_connection_has_a_session_of_its_own(sshd: Sshd, connection: Connection) -> None:
    ours = session.of(connection)
    assert ours is not None
    assert ours == session.of(connection)
    assert (ours.pid, str(ours.start_ticks)) in sshd.logins()
    with another(sshd) as other:
        assert session.of(other) not in (None, ours)


def test_a_session_that_is_ended_gives_its_ports_back(sshd: Sshd, connection: Connection) -> None:
    port = free_port()
    connection.remote_forward(port, port)
    left = session.of(connection)
    assert left is not None
    with another(sshd) as new:
        with pytest.raises(Failure, match="does not listen"):
            new.remote_forward(port, port)
        assert session.end(new, left)
        new.remote_forward(port, port)
        assert session.end(new, left), "it is gone already"


def test_another_process_with_the_same_pid_is_left_alone(connection: Connection) -> None:
    assert session.end(connection, session.Session(os.getpid(), 1))


def test_a_node_that_can_not_tell_is_no_error(connection: Connection) -> None:
    class Mute:
        def run(self, words: object, *, limit_s: float) -> object:
            return connection.run(("sh", "-c", "exit 1"), limit_s=limit_s)

    assert session.of(Mute()) is None  # type: ignore[arg-type]
