"""A connection that nobody wants any more: whoever makes it ends at once, wherever it waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vdisagg.errors import Unreachable
from vdisagg.launch.background import in_background
from vdisagg.launch.cancel import Cancel
from vdisagg.launch.ssh.connect import connect
from vdisagg.plan.model import Ssh

LIMIT_S = 60.0
HEEDED_S = 20.0


@contextmanager
def cancelled(config: Path) -> Iterator[Cancel]:
    """A connection that is being made in the block, and is cancelled at its end."""
    cancel = Cancel()
    ssh = Ssh("node")
    making = in_background(
        lambda: connect("n1", ssh, limit_s=LIMIT_S, config=config, cancel=cancel)
    )
    yield cancel
    cancel()
    with pytest.raises(Unreachable, match="n1: "):
        making.result(HEEDED_S)


def config(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "ssh_config"
    file.write_text("\n  ".join(("Host node", *lines, "")))
    return file


def test_the_wait_for_a_greeting_is_broken_off(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        port = silent.getsockname()[1]
        with cancelled(config(tmp_path, "HostName 127.0.0.1", f"Port {port}")):
            theirs, _ = silent.accept()
            theirs.settimeout(20)
            assert theirs.recv(4) == b"SSH-"
        while theirs.recv(4096):  # until it is closed over there
            pass
        theirs.close()


def test_a_proxy_command_is_ended_with_what_waits_for_it(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    begun = tmp_path / "begun"
    script = f"echo $$ >{begun}.new; mv {begun}.new {begun}; exec sleep 1000"
    with cancelled(config(tmp_path, f"ProxyCommand sh -c '{script}'")):
        wait_until(begun.exists)
    pid = int(begun.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_connection_that_was_cancelled_before_is_not_begun(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cancel = Cancel()
        cancel()
        file = config(tmp_path, "HostName 127.0.0.1", f"Port {port}")
        with pytest.raises(Unreachable, match="n1: the connection was broken off here"):
            connect("n1", Ssh("node"), limit_s=LIMIT_S, config=file, cancel=cancel)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_who_begins_to_wait_after_the_word_is_woken_at_once() -> None:
    cancel, woken = Cancel(), threading.Event()
    with cancel.wakes(woken.set):
        assert not woken.is_set()
    cancel()
    assert not woken.is_set(), "nobody waits any more"
    with cancel.wakes(woken.set):
        assert woken.is_set()
