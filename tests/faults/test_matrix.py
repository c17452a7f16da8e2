"""The fault matrix on stand-ins: real guards, controller and command line around processes that only act
like vLLM's. See docs/faults.md; on real engines: tests/real/test_fault_matrix.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from faults.answers import QUESTIONS, question
from faults.bed import Bed
from faults.cells import CELLS, PHASES, Cell, Phase
from faults.stage import Timing
from faults.stub import install
from real.conftest import cluster_at, running

pytestmark = pytest.mark.faults  # minutes, with limits that a machine at other work does not keep

TIMING = Timing(
    limit_s=2.4,
    stop_s=6.0,
    stopped_s=14.0,
    slack_s=1.0,
    restart_s=30.0,
    end_s=40.0,
    lease_s=20.0,
)

UNSAVED = tuple(
    question(40, 300, 7, **options)
    for options in ({"presence_penalty": 0.5}, {"seed": 7, "temperature": 0.8})
    for _ in range(2)
)


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
        heartbeat={"interval_s": 0.8, "misses": 3},
        restart={"stopped_s": TIMING.stopped_s},
        timeouts={"launch_s": 60, "stop_s": 1, "request_s": 20, "handover_s": 4, "lease_s": 20},
    )
    for up in running(cluster):
        yield Bed(up, TIMING, QUESTIONS)


def test_a_stream_that_cannot_go_on_elsewhere_ends_in_an_error_event(bed: Bed) -> None:
    """Of each kind two, since two decode engines take turns, and one of these is killed."""
    ends: Counter[str | None] = Counter()
    for one in bed.killed_under("d0", UNSAVED):
        wrong = one.wrong(bed.questions.right(one.question), frozenset({"whole", "error"}))
        assert not wrong, wrong
        ends[one.ending] += 1
    assert set(ends) == {"whole", "error"}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cell(bed: Bed, cell: Cell, phase: Phase) -> None:
    bed.report(cell).look(phase)
