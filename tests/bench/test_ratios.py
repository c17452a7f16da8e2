"""`bench --ratios` launches a cluster anew for each ratio, and leaves it as it was (on stand-ins)."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from faults.stub import install
from real.conftest import BIN, RealCluster, cluster_at, running

LOAD = ("--num-requests", "4", "--input-len", "20", "--output-len", "3", "--warmup", "1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """1P2D."""
    directory = tmp_path_factory.mktemp("ratios")
    model = directory / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "stub"}\n')
    cluster = cluster_at(
        directory,
        "ratios",
        str(model),
        nodes={"here": {"device": "cpu", "vllm": str(install(directory / "bin"))}},
        decode={"node": "here", "count": 2},
        timeouts={"launch_s": 60, "stop_s": 1},
    )
    yield from running(cluster)


def engines(cluster: RealCluster) -> list[str]:
    return [instance.name for instance in cluster.status().instances]


def test_each_ratio_is_measured_and_the_cluster_is_as_it_was(cluster: RealCluster) -> None:
    words = ("--name", cluster.name, "--ratios", "1:2,2:1", *LOAD)
    done = cluster.home.vdisagg("bench", *words, "--json")
    assert [run["label"] for run in json.loads(done.stdout)["runs"]] == ["1:2", "2:1"]
    assert "relaunching ratios as 2:1\n" in done.stderr
    assert "relaunching ratios as it was, 1:2\n" in done.stderr
    assert engines(cluster) == ["p0", "d0", "d1"]


def test_what_cant_be_ends_it_before_anything_is_taken_down(cluster: RealCluster) -> None:
    before = cluster.status().pid
    for words, said in (
        (("2:1,2:2",), "the cluster has 3 engines, this names 4; say ratios that add up to 3"),
        (("2:1", "--api-key-env", "NOT_SET"), "--api-key-env NOT_SET: the variable is not set"),
    ):
        asked = ("--name", cluster.name, *LOAD, "--ratios", *words)
        done = cluster.home.vdisagg("bench", *asked, check=False)
        assert done.returncode == 2
        assert said in done.stderr
    assert cluster.status().pid == before


def test_where_a_run_fails_the_cluster_is_put_back_all_the_same(cluster: RealCluster) -> None:
    words = ("--name", cluster.name, "--ratios", "2:1", *LOAD, "--endpoint", "chat")
    done = cluster.home.vdisagg("bench", *words, check=False)
    assert done.returncode == 1
    assert "error: /detokenize" in done.stderr
    assert engines(cluster) == ["p0", "d0", "d1"]


@pytest.mark.parametrize("begun", ["relaunching ratios as 2:1\n", "p0: launching"])
def test_ctrl_c_in_a_relaunch_leaves_what_was_measured_and_the_cluster_as_it_was(
    cluster: RealCluster, begun: str
) -> None:
    words = ("--name", cluster.name, "--ratios", "1:2,2:1", *LOAD, "--json")
    bench = subprocess.Popen(
        ["env", "--default-signal", str(BIN / "vdisagg"), "bench", *words],
        env=cluster.home.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert bench.stderr is not None
    assert any(begun in line for line in bench.stderr)
    bench.send_signal(signal.SIGINT)
    out, err = bench.communicate(timeout=120)
    assert bench.returncode == 130, err
    if "launching" in begun.split():  # before that there may be nothing to be put back
        assert "relaunching ratios as it was, 1:2\n" in err
    assert err.endswith("error: interrupted by SIGINT\n")
    assert [run["label"] for run in json.loads(out)["runs"]] == ["1:2"]
    assert engines(cluster) == ["p0", "d0", "d1"]
