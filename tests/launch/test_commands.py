"""The commands on a cluster that runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from launch.conftest import PATIENCE_S
from vdisagg.cluster import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from launch.conftest import Cluster


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vdisagg", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done


def status_once_answered(*words: str) -> subprocess.CompletedProcess[str]:
    """What `status` says once the controller has answered in time: one that was only slow is asked again."""
    deadline = time.monotonic() + PATIENCE_S
    while "does not answer" in (done := run("status", *words)).stdout:
        if time.monotonic() >= deadline:
            break
    return done


def test_status_logs_and_down_need_no_name_where_one_cluster_is_recorded(cluster: Cluster) -> None:
    cluster.up()
    status = status_once_answered()
    assert status.returncode == 0, status.stdout
    assert "cluster demo: healthy" in status.stdout
    assert run("logs", "p0").stdout == "loading\n"
    down = run("down")
    assert down.returncode == 0
    assert "cluster demo is down: 8 processes ended" in down.stdout
    assert cluster.is_empty()


def test_status_as_json_says_the_same(cluster: Cluster) -> None:
    cluster.up()
    view = json.loads(status_once_answered("--json").stdout)
    assert (view["name"], view["phase"], view["healthy"]) == ("demo", "up", True)
    assert [process["name"] for process in view["processes"]] == list(cluster.pids())


def test_status_of_a_degraded_cluster_exits_1(cluster: Cluster) -> None:
    cluster.up()
    (cluster.root / "demo" / "d0" / "ready").unlink()
    done = status_once_answered("--name", "demo")
    assert done.returncode == 1
    assert "d0: connected" in done.stdout


def test_of_several_clusters_one_must_be_named(make_cluster: Callable[[str], Cluster]) -> None:
    for name in ("a", "b"):
        cluster = make_cluster(name)
        cluster.up()
    for command in (("down",), ("status",), ("logs", "p0"), ("events",)):
        done = run(*command)
        assert done.returncode == 2
        assert "recorded are: a, b" in done.stderr
    assert run("down", "--name", "a").returncode == 0
    assert record.recorded() == ["b"]


def test_an_unknown_log_lists_the_names_that_there_are(cluster: Cluster) -> None:
    cluster.up()
    done = run("logs", "front")
    assert done.returncode == 2
    assert "there are: controller, p0, d0, front-end; did you mean front-end?" in done.stderr
