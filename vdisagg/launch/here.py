"""What planning has to know of the machine that we run on."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vdisagg.cluster.record import read, recorded, state_root
from vdisagg.errors import UsageError
from vdisagg.launch.addresses import find_addresses
from vdisagg.launch.ports import listening
from vdisagg.plan.site import Here

if TYPE_CHECKING:
    from vdisagg.launch.addresses import Found
    from vdisagg.topology.model import Topology

WORK_DIRECTORY = ".vdisagg"  # in the home directory, as on nodes that are reached by SSH


def here_for(topology: Topology, found: Found | None = None) -> Here:
    """This machine, for planning that topology. Changes nothing.

    `found`: addresses that were looked up; without it those that no node has to be asked for.
    """
    found = find_addresses(topology) if found is None else found
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return Here(
        python=sys.executable,
        vllm=find_vllm() or "vllm",
        state_directory=state_root() / topology.name,
        work_directory=Path.home() / WORK_DIRECTORY,
        # Processes run in directories of their own, where a relative entry would mean another.
        pythonpath=os.pathsep.join(str(Path(entry).absolute()) for entry in entries),
        home=str(Path.home()),
        addresses=found.addresses,
        routes=found.routes,
    )


def taken_ports(cluster: str) -> frozenset[int]:
    """Ports that planning has to leave alone: what listens here, and what other clusters recorded.

    A recorded port may be silent, its controller dead: engines go on dialling it all the same, and
    would end up as another cluster's.
    """
    others = set[int]()
    for name in recorded():
        if name != cluster and (found := read(state_root() / name)) is not None:
            others |= {address.port for address in found.plan.ports()}
    return listening() | others


def find_vllm() -> str | None:
    """The vllm executable beside our interpreter, else the first one on PATH."""
    beside = Path(sys.executable).with_name("vllm")
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("vllm")


def require_vllm(topology: Topology) -> None:
    """Raises UsageError when a local node names no vLLM and there is none to be found here."""
    if find_vllm() is not None:
        return
    for name, node in topology.nodes.items():
        if node.local and node.vllm is None and node.python is None and node.setup is None:
            raise UsageError(
                f"nodes.{name}: no `vllm` beside {sys.executable} nor on PATH; next: "
                "pip install 'vdisagg[gpu]' (or [cpu]), or set `vllm:` or `python:` of the node"
            )
