"""What guards leave behind is looked at on the controller's own machine, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fakes.cluster import make_plan
from vdisagg.control.processes import ProcessWatch
from vdisagg.plan.model import Node, Ssh

HERE = Node("here", "cpu", "127.0.0.1")
ALSO_HERE = Node("n1", "cpu", "127.0.0.1")
AWAY = Node("n1", "cpu", "192.0.2.1", ssh=Ssh("n1.example"))


@pytest.mark.parametrize(
    ("node", "controller_node", "watched"),
    [
        (ALSO_HERE, "here", ["d0", "p0"]),
        (AWAY, "here", ["d0"]),
        (AWAY, "n1", ["p0"]),
    ],
)
def test_only_instances_on_the_controllers_machine_are_watched(
    tmp_path: Path, node: Node, controller_node: str, watched: list[str]
) -> None:
    """Another node's directory may have a name that is here too, with another run's files in it."""
    made = make_plan(tmp_path, 1, 1, interval_s=60.0)
    prefill, decode = made.instances
    process = msgspec.structs.replace(prefill.process, node="n1")
    plan = msgspec.structs.replace(
        made,
        instances=(msgspec.structs.replace(prefill, process=process), decode),
        controller=msgspec.structs.replace(made.controller, node=controller_node),
        nodes=(HERE, node),
    )
    for name in ("p0", "d0"):
        (tmp_path / name).mkdir()
        started = {"at": 2.0}
        ended = {"at": 3.0, "signal": 9, "code": None}
        (tmp_path / name / "process.json").write_text(json.dumps(started))
        (tmp_path / name / "exit.json").write_text(json.dumps(ended))
    watch = ProcessWatch(plan, since=1.0)
    assert sorted(watch.started()) == watched
    assert sorted(name for name, _ in watch.ended()) == watched
