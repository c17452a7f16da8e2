"""Status tells the truth, whatever has become of the cluster."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import pytest

from vdisagg.cluster import record
from vdisagg.cluster.record import Lock
from vdisagg.plan.model import Restart
from vdisagg.view.status import status_text

if TYPE_CHECKING:
    from launch.conftest import Cluster
    from vdisagg.cluster.snapshot import ClusterView


def states(view: ClusterView) -> dict[str, str]:
    return {process.name: process.state for process in view.processes}


def shown(view: ClusterView) -> str:
    return status_text(view, now=(view.created or 0.0) + 75)


def test_nothing_recorded(cluster: Cluster) -> None:
    view = cluster.status()
    assert (view.phase, view.healthy, view.problems) == ("absent", False, ("nothing runs",))
    assert shown(view) == "cluster demo: nothing runs"


def test_up_and_well(cluster: Cluster) -> None:
    cluster.up()
    view = cluster.status()
    assert (view.phase, view.healthy, view.problems) == ("up", True, ())
    assert set(states(view).values()) == {"ready"}
    assert shown(view).startswith(f"cluster demo: healthy, 1 min 15 s   {view.url}")
    assert "p0→d0" in shown(view)


def test_at_work_the_lock_holder_is_named(cluster: Cluster) -> None:
    cluster.up()
    recorded = record.read(cluster.directory)
    assert recorded is not None
    now = recorded.created
    with Lock(cluster.directory, "vdisagg up demo.yaml", clock=lambda: now):
        view = cluster.status()
        assert (view.phase, view.healthy) == ("starting", False)
        assert f"`vdisagg up demo.yaml` (pid {os.getpid()}) is at work" in view.problems[0]
    with Lock(cluster.directory, "vdisagg down --name demo", clock=lambda: now):
        assert cluster.status().phase == "stopping"
    assert cluster.status().phase == "up"


def test_interrupted_says_what_next(cluster: Cluster) -> None:
    cluster.up()
    recorded = record.read(cluster.directory)
    assert recorded is not None
    starting = record.Record(recorded.plan, recorded.created, 12345, "starting", recorded.processes)
    record.write(cluster.directory, starting)
    view = cluster.status()
    assert (view.phase, view.healthy) == ("interrupted", False)
    assert "an up (pid 12345)" in view.problems[0]
    assert "`vdisagg down --name demo`" in view.problems[0]


def test_the_controller_is_dead_and_the_engines_run_on(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.up()
    os.kill(cluster.observe("controller").pid or 0, signal.SIGKILL)
    wait_until(lambda: cluster.observe("controller").state == "exited")
    view = cluster.status()
    assert (view.phase, view.healthy, view.controller_answers) == ("up", False, False)
    assert states(view) == {
        "controller": "exited",
        "p0": "running",
        "d0": "running",
        "front-end": "running",
    }
    assert [p for p in view.problems if p.startswith("controller: signal 9; its log: ")]


def test_the_controller_is_stopped_and_does_not_answer(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.up()
    os.kill(cluster.observe("controller").pid or 0, signal.SIGSTOP)
    wait_until(lambda: cluster.observe("controller").stopped)
    view = cluster.status(admin_limit_s=1.0)
    assert states(view)["controller"] == "stopped"
    assert [p for p in view.problems if "the controller does not answer" in p]


def test_a_dead_engine_is_shown_with_how_it_ended(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.up()
    os.kill(cluster.observe("d0").pid or 0, signal.SIGKILL)
    wait_until(lambda: cluster.observe("d0").state == "exited")
    view = cluster.status()
    assert states(view)["d0"] == "exited"
    assert not view.healthy
    assert [p for p in view.problems if p.startswith("d0: signal 9")]
    assert "degraded" in shown(view)


def test_a_guard_that_is_gone_is_a_problem_although_the_engine_runs(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.up()
    guard = cluster.observe("p0").guard_pid
    os.kill(guard or 0, signal.SIGKILL)
    wait_until(lambda: not cluster.observe("p0").guard_alive)
    view = cluster.status()
    assert states(view)["p0"] == "ready"
    assert view.problems == (f"p0: its guard (pid {guard}) is gone; it runs on",)


def test_an_engine_that_vanished_with_its_guard_is_gone_and_its_children_are_counted(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.up()
    seen = cluster.observe("p0")
    for pid in (seen.guard_pid, seen.pid):
        os.kill(pid or 0, signal.SIGKILL)
    wait_until(lambda: cluster.observe("p0").state == "gone")
    view = cluster.status()
    assert states(view)["p0"] == "gone"
    assert any(str(list(seen.members[1:])) in problem for problem in view.problems)


def test_while_loading_the_engine_says_so(
    cluster: Cluster,
) -> None:
    cluster.up()
    (cluster.root / "demo" / "d0" / "ready").unlink()
    view = cluster.status()
    assert states(view)["d0"] == "connected"
    assert view.problems == (
        "d0: connected",
        "link p0→d0: cold",
        "no working link: /health answers 503",
    )


def test_a_front_end_that_is_gone_is_said_with_what_that_means(cluster: Cluster) -> None:
    cluster.up()
    (cluster.root / "demo" / "front-end" / "gone").touch()
    view = cluster.status()
    assert states(view)["front-end"] == "gone"
    (problem,) = view.problems
    assert problem == "front end: gone, and its requests with it; a new one will be attached"


def started(cluster: Cluster, generation: int) -> bool:
    seen = cluster.observe("d0")
    return seen.state == "running" and seen.generation == generation


def test_a_process_whose_guard_waits_to_start_it_again_is_restarting(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.restart = Restart(backoff_s=1000.0)
    cluster.up()
    for generation in (1, 2):
        wait_until(lambda g=generation: started(cluster, g))
        os.kill(cluster.observe("d0").pid or 0, signal.SIGKILL)
    wait_until(lambda: cluster.observe("d0").ends == 2)
    view = cluster.status()
    assert states(view)["d0"] == "restarting"
    problem = next(p for p in view.problems if p.startswith("d0: signal 9"))
    assert re.search(r"its guard starts it again in (9\d\d|1000) s$", problem)


def test_how_often_a_running_process_was_restarted_is_shown(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.restart = Restart()
    cluster.up()
    os.kill(cluster.observe("d0").pid or 0, signal.SIGKILL)
    wait_until(lambda: cluster.observe("d0").state == "running" and cluster.observe("d0").ends)
    wait_until(lambda: cluster.status().healthy)
    view = cluster.status()
    details = [process.detail for process in view.processes if process.name == "d0"]
    assert details == ["restarted 1 time, last after signal 9"]


def test_a_guard_that_gave_up_is_told(cluster: Cluster, wait_until: Callable[..., None]) -> None:
    cluster.restart = Restart(limit=0)
    cluster.up()
    os.kill(cluster.observe("d0").pid or 0, signal.SIGKILL)
    # the guard writes the end down first, then ends what is left of the group
    wait_until(
        lambda: cluster.observe("d0").state == "exited" and not cluster.observe("d0").members
    )
    problems = cluster.status().problems
    assert [p for p in problems if p.startswith("d0: signal 9, and its guard gave up; its log: ")]


@pytest.mark.parametrize("policy", ["never", "on-failure"])
def test_a_stopped_process_is_told_with_what_becomes_of_it(
    cluster: Cluster, wait_until: Callable[..., None], policy: Literal["never", "on-failure"]
) -> None:
    cluster.restart = Restart(policy=policy)
    cluster.up()
    os.kill(cluster.observe("d0").members[-1], signal.SIGSTOP)
    wait_until(lambda: cluster.observe("d0").stopped)
    view = cluster.status()
    assert states(view)["d0"] == "stopped"
    outlook = "; its guard kills it after 30 s of that, and starts it again"
    said = f"d0: is stopped by a signal{outlook if policy == 'on-failure' else ''}"
    assert view.problems == (said,)
