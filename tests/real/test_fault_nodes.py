"""The rows of the fault matrix that take machines, on real engines: four hosts made of network namespaces.

See docs/faults.md and tests/faults/nodes.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.cells import PHASES, Phase
from faults.node_cells import NODE_CELLS, TUNNEL_CELLS, NodeCell
from faults.nodes import NodesBed, four_nodes, url_of
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
ALIVE_S = 4
"""Three times that is longer than `stop_s`."""


def beds(directory: pytest.TempPathFactory, control: str) -> Iterator[NodesBed]:
    engine = {
        "args": {
            "max_model_len": 1024,
            "dtype": "float32",
            "max_num_seqs": 32,
            "num_gpu_blocks_override": 256,
        }
    }
    with four_nodes(
        directory.mktemp(control),
        TIMING,
        vllm=BIN / "vllm",
        model=str(MODELS / "tiny"),
        control=control,
        up_s=400,
        alive_s=ALIVE_S,
        front_apart=control == "direct",
        engine=engine,
        heartbeat={"interval_s": 1, "misses": 3},
        timeouts={"launch_s": 300, "stop_s": 15, "request_s": 60, "handover_s": 5},
    ) as (made, front):
        with front.entered():
            url = url_of(made, front)
            known = {asked: whole(url, "tiny", asked) for asked in (*STREAMS, *HELD, SHORT)}
        known |= dict(zip(UNHURRIED, (known[asked] for asked in HELD), strict=True))
        asked = Questions(STREAMS, HELD, UNHURRIED, SHORT, known.__getitem__)
        yield NodesBed(made, TIMING, asked, "tiny", front=front, alive_s=ALIVE_S)


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesBed]:
    yield from beds(tmp_path_factory, "direct")


@pytest.fixture(scope="module")
def tunnel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodesBed]:
    yield from beds(tmp_path_factory, "tunnel")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cell", NODE_CELLS, ids=lambda cell: cell.name)
def test_cell(direct: NodesBed, cell: NodeCell, phase: Phase) -> None:
    direct.report(cell).look(phase)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cell", TUNNEL_CELLS, ids=lambda cell: cell.name)
def test_cell_with_a_tunnel(tunnel: NodesBed, cell: NodeCell, phase: Phase) -> None:
    tunnel.report(cell).look(phase)
