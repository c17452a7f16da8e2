"""kill -9 of each process of 1P1D in turn: status tells the truth, guards start again what has died, down
leaves nothing, up works again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fakes.limit import Limit
from real.ask import post
from real.conftest import BIN, RealCluster, cluster_at, running
from real.processes import children_of, title_of

pytestmark = pytest.mark.real

TRUTH_S = 2.0
LOOK_S = 0.5
"""What one look takes at most: it starts a process."""
RESTART_S = 120.0
GONE_S = 40.0
"""So long may it take until a whole tree of processes is gone, its leader and guard killed, on a machine that
stands still now and then."""


def recorded_processes(cluster: RealCluster) -> dict[str, Any]:
    """What the record says has been started so far."""
    try:
        return dict(json.loads((cluster.state / "cluster.json").read_text())["processes"])
    except FileNotFoundError:
        return {}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A cluster that each test kills a part of; its decode engine has a process for the model."""
    decode = {"node": "here", "args": {"distributed_executor_backend": "mp"}}
    cluster = cluster_at(tmp_path_factory.mktemp("kills"), "kills", "tiny", decode=decode)
    yield from running(cluster)


def process(cluster: RealCluster, name: str) -> dict[str, Any]:
    return next(p for p in cluster.view()["processes"] if p["name"] == name)


def leader(cluster: RealCluster, name: str) -> int:
    return int(process(cluster, name)["observation"]["pid"])


def guard(cluster: RealCluster, name: str) -> int:
    return int(process(cluster, name)["observation"]["guard_pid"])


def descendant(cluster: RealCluster, name: str, title: str) -> int:
    (found,) = [p for p in children_of(leader(cluster, name)) if title_of(p).startswith(title)]
    return found


def ask(cluster: RealCluster, timeout_s: float = 30.0) -> int:
    body = {"model": cluster.model, "prompt": "Hello there", "max_tokens": 4}
    status, _ = post(cluster.url, "/v1/completions", body, timeout_s=timeout_s)
    return status


def told(cluster: RealCluster, truth: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The status, once it tells the truth, which has to be soon."""
    limit = Limit(TRUTH_S, look_s=LOOK_S)
    while not truth(view := cluster.view()):
        assert not limit.over(), f"not told within {TRUTH_S} s: {view}"
    return view


def state_of(view: dict[str, Any], name: str) -> str:
    return str(next(p["state"] for p in view["processes"] if p["name"] == name))


def is_told(view: dict[str, Any], name: str) -> bool:
    """Whether a process is not ready, and a problem names it. While the controller does not answer it is not
    ready either, and nothing is known of it."""
    return state_of(view, name) != "ready" and any(name in problem for problem in view["problems"])


def is_whole(cluster: RealCluster) -> None:
    """Wait until its guards have made good what was killed, and HTTP is open: a front end that has just
    attached takes a moment more."""
    deadline = time.monotonic() + RESTART_S
    while not ((view := cluster.view())["healthy"] and opens(cluster)):
        assert time.monotonic() < deadline, f"not whole within {RESTART_S} s: {view['problems']}"
        time.sleep(0.2)
    assert ask(cluster) == 200


def opens(cluster: RealCluster) -> bool:
    """Whether anybody listens where HTTP is to be."""
    target = urlsplit(cluster.url)
    with contextlib.suppress(OSError):
        socket.create_connection((target.hostname, target.port), timeout=5).close()
        return True
    return False


def test_d06_a_killed_prefill_core_is_told_and_started_again_while_decode_computes_alone(
    target: RealCluster,
) -> None:
    before = leader(target, "p0")
    os.kill(descendant(target, "p0", "VLLM::EngineCore"), signal.SIGKILL)
    told(target, lambda v: is_told(v, "p0"))
    assert ask(target) == 200, "a decode engine can do it all"
    is_whole(target)
    assert leader(target, "p0") != before


@pytest.mark.parametrize("title", ["VLLM::EngineCore", "VLLM::Worker"])
def test_d06_a_killed_process_of_the_only_decode_engine_is_told_and_started_again(
    target: RealCluster, title: str
) -> None:
    before = leader(target, "d0")
    os.kill(descendant(target, "d0", title), signal.SIGKILL)
    told(target, lambda v: is_told(v, "d0"))
    # No working link is left: an error at once, never a hang.
    assert ask(target) in (500, 503)
    is_whole(target)
    assert leader(target, "d0") != before


def test_killed_controller_front_end_and_guard_are_told_and_what_has_a_guard_comes_back(
    target: RealCluster,
) -> None:
    before = {name: leader(target, name) for name in ("controller", "front-end", "p0", "d0")}
    os.kill(before["controller"], signal.SIGKILL)
    assert ask(target) == 200, "it waits for the next controller"
    is_whole(target)

    os.kill(before["front-end"], signal.SIGKILL)
    told(target, lambda v: state_of(v, "front-end") != "ready")
    is_whole(target)
    now = {name: leader(target, name) for name in before}
    assert {name for name in before if now[name] != before[name]} == {"controller", "front-end"}

    os.kill(guard(target, "p0"), signal.SIGKILL)
    # The guard is gone, and its engine serves on.
    told(
        target,
        lambda v: (
            any("guard" in p and "p0" in p for p in v["problems"]) and state_of(v, "p0") == "ready"
        ),
    )
    assert ask(target) == 200
    target.down()
    target.up()
    assert ask(target) == 200


def test_d08_a_killed_up_is_told_and_the_next_up_goes_on_with_what_runs(
    target: RealCluster,
) -> None:
    target.down()
    words = [str(BIN / "vdisagg"), "up", str(target.file)]
    command = subprocess.Popen(words, env=target.home.environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while "front-end" not in recorded_processes(target):
        assert time.monotonic() < deadline, "up has not started its processes"
        time.sleep(0.05)
    command.kill()
    command.wait()
    view = told(target, lambda v: v["phase"] == "interrupted")
    assert any("ended half-way" in problem for problem in view["problems"]), view["problems"]
    before = {name: leader(target, name) for name in ("p0", "d0", "front-end", "controller")}
    target.up()
    assert {name: leader(target, name) for name in before} == before, "a second copy was started"
    assert ask(target) == 200


def test_d06_taking_one_cluster_down_leaves_another_alone(
    target: RealCluster, tmp_path: Path
) -> None:
    """Two clusters on one machine, defaults for all ports but HTTP: one dies, is taken down and comes up
    again, one serves on."""
    before = {name: leader(target, name) for name in ("p0", "d0", "front-end", "controller")}
    other = cluster_at(tmp_path, "other", "tiny", timeouts={"stop_s": 5})
    try:
        other.up()
        os.kill(guard(other, "d0"), signal.SIGKILL)
        os.kill(leader(other, "d0"), signal.SIGKILL)
        killed = time.monotonic()
        assert ask(target) == 200
        other.down()  # which sees that nothing is left
        assert time.monotonic() - killed < GONE_S
        other.up()
        assert ask(other) == 200
    finally:
        other.down()
    assert ask(target) == 200
    told(target, lambda v: bool(v["healthy"]))
    assert {name: leader(target, name) for name in before} == before
    assert target.status().totals.failed == 0
