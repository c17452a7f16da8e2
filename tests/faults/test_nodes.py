"""The rows of the fault matrix that take machines, on stand-ins (docs/faults.md)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.answers import QUESTIONS
from faults.cells import PHASES, Phase
from faults.node_cells import NODE_CELLS, TUNNEL_CELLS, NodeCell
from faults.nodes import NodesBed, four_nodes
from faults.stage import Timing
from faults.stub import install
from hosts.network import missing

pytestmark = [pytest.mark.hosts, pytest.mark.skipif(bool(missing()), reason=missing())]

TIMING = Timing(
    limit_s=2.4,
    stop_s=6.0,
    stopped_s=20.0,
    slack_s=1.0,
    restart_s=60.0,
    end_s=40.0,
    lease_s=12.0,
)
ALIVE_S = 3
"""Three times that is longer than `stop_s`."""


def beds(directory: pytest.TempPathFactory, control: str) -> Iterator[NodesBed]:
    made = directory.mktemp(control)
    with four_nodes(
        made,
        TIMING,
        vllm=install(made / "bin"),
        model="",
        control=control,
        up_s=120,
        alive_s=ALIVE_S,
        front_apart=control == "direct",
        heartbeat={"interval_s": 0.8, "misses": 3},
        timeouts={"launch_s": 60, "stop_s": 1, "request_s": 20, "handover_s": 4, "lease_s": 12},
    ) as (bed, front):
        yield NodesBed(bed, TIMING, QUESTIONS, "stub", front=front, alive_s=ALIVE_S)


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
