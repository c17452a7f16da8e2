"""The rows of the fault matrix that take machines, on real engines: four hosts made of network namespaces.

See docs/faults.md and tests/faults/nodes.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.cells import PHASES, Phase
from faults.nodes import NODE_CELLS, NodeCell, NodesBed, four_nodes
from faults.stage import Questions, Timing
from hosts.network import missing
from real.conftest import BIN, MODELS
from real.test_fault_matrix import HELD, SHORT, STREAMS, UNHURRIED, whole

pytestmark = [
    pytest.mark.real,
    pytest.mark.faults,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

TIMING = Timing(
    limit_s=3.0,
    stop_s=10.0,
    stopped_s=30.0,
    slack_s=1.5,
    restart_s=120.0,
    end_s=90.0,
    lease_s=30.0,
)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesBed]:
    engine = {
        "args": {
            "max_model_len": 1024,
            "dtype": "float32",
            "max_num_seqs": 32,
            "num_gpu_blocks_override": 256,
        }
    }
    with four_nodes(
        tmp_path_factory.mktemp("nodes"),
        TIMING,
        vllm=BIN / "vllm",
        model=str(MODELS / "tiny"),
        control="direct",
        up_s=400,
        engine=engine,
        heartbeat={"interval_s": 1, "misses": 3},
        timeouts={"launch_s": 300, "stop_s": 15, "request_s": 60, "handover_s": 5},
    ) as made:
        with made.here.entered():
            url = "http://127.0.0.1:8000"
            known = {asked: whole(url, "tiny", asked) for asked in (*STREAMS, *HELD, SHORT)}
        known |= dict(zip(UNHURRIED, (known[asked] for asked in HELD), strict=True))
        asked = Questions(STREAMS, HELD, UNHURRIED, SHORT, known.__getitem__)
        yield NodesBed(made, TIMING, asked, "tiny")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cell", NODE_CELLS, ids=lambda cell: cell.name)
def test_cell(bed: NodesBed, cell: NodeCell, phase: Phase) -> None:
    bed.report(cell).look(phase)
