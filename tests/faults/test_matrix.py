"""The fault matrix on stand-ins: real guards, controller and command line around processes that only act
like vLLM's. See docs/faults.md; on real engines: tests/real/test_fault_matrix.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.answers import QUESTIONS
from faults.bed import Bed
from faults.cells import CELLS, PHASES, Cell, Phase
from faults.stage import Timing
from faults.stub import install
from real.conftest import cluster_at, running

pytestmark = pytest.mark.hosts  # minutes, as those on hosts; but it needs no hosts, and no root

TIMING = Timing(limit_s=1.2, stop_s=3.0, stopped_s=5.0, slack_s=1.0, restart_s=20.0, end_s=30.0)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    directory = tmp_path_factory.mktemp("matrix")
    model = directory / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "stub"}\n')
    mp = {"args": {"distributed_executor_backend": "mp"}}
    cluster = cluster_at(
        directory,
        "matrix",
        str(model),
        nodes={"here": {"device": "cpu", "vllm": str(install(directory / "bin"))}},
        prefill={"node": "here", "count": 2},
        decode={"instances": [{"node": "here"}, {"node": "here", **mp}]},
        heartbeat={"interval_s": 0.4, "misses": 3},
        restart={"stopped_s": TIMING.stopped_s},
        timeouts={"launch_s": 60, "stop_s": 1, "request_s": 20, "handover_s": 2},
    )
    for up in running(cluster):
        yield Bed(up, TIMING, QUESTIONS)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cell(bed: Bed, cell: Cell, phase: Phase) -> None:
    bed.report(cell).look(phase)
