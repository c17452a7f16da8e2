"""A real sshd for tests of connections; skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hosts.sshd import Sshd, missing
from vdisagg.launch.ssh.connect import connect
from vdisagg.launch.ssh.connection import Connection
from vdisagg.plan.model import Ssh

Start = Callable[..., Sshd]


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def start_sshd(tmp_path: Path) -> Iterator[Start]:
    """Starts as many as are asked for; each takes what Sshd takes."""
    if why := missing():
        pytest.skip(why)
    with ExitStack() as stack:

        def start(name: str = "sshd", **how: Any) -> Sshd:
            how.setdefault("home", tmp_path / f"{name}-home")
            return stack.enter_context(Sshd(tmp_path / name, **how))

        yield start


@pytest.fixture
def sshd(start_sshd: Start) -> Sshd:
    return start_sshd()


@pytest.fixture
def connection(sshd: Sshd) -> Iterator[Connection]:
    with connect("n1", Ssh("node"), config=sshd.ssh_config("node")) as made:
        yield made
