"""What one node's facts mean for the plan: each row of the table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fakes.two_nodes import HERE, N1, instance, plan
from vdisagg.cluster.findings import Finding
from vdisagg.launch.preflight.facts import (
    Disk,
    Facts,
    Gpu,
    Gpus,
    Holder,
    Model,
    Skew,
    Vllm,
    skew,
)
from vdisagg.launch.preflight.judge import judge
from vdisagg.plan.model import Plan

GIB = 1 << 30
HEALTHY = Facts(
    python="3.8.10",
    executable="/usr/bin/python3",
    disk=Disk("/home/me", 50 * GIB, ""),
    shm_bytes=64 * GIB,
    busy=(),
    vllm=Vllm("", "", "/v/bin/vllm", "/v/bin/python", "3.12.1", {"vllm": "0.32.0", "torch": "2"}),
    model=Model("", "/models/m", "path", True, {"config.json": "ab"}, "w"),
    gpus=None,
    begun=0.0,
    ended=0.0,
)
IDLE = Gpus("", tuple(Gpu(i, f"GPU-{i}", "NVIDIA H100 80GB HBM3", 81559, 4) for i in range(4)), ())
NO_SKEW = Skew(0.0, 0.0)


def with_gpus(*gpus: int, **env: Any) -> Plan:
    p0 = msgspec.structs.replace(instance("p0", "n1", **env), gpus=gpus)
    return plan(p0, instance("d0", "n2", first=21010))


def findings(
    wanted: Plan | None = None,
    *,
    node: str = "n1",
    running: bool = False,
    clock: Skew = NO_SKEW,
    **changes: Any,
) -> list[Finding]:
    """All but notes."""
    facts = msgspec.structs.replace(HEALTHY, **changes)
    made = wanted or plan()
    where = next(one for one in made.nodes if one.name == node)
    found = judge(made, where, facts, clock, running=running)
    return [finding for finding in found if finding.level != "note"]


def one(*args: Plan, **changes: Any) -> Finding:
    (found,) = findings(*args, **changes)
    return found


def test_a_healthy_node_has_notes_only() -> None:
    assert findings() == []
    notes = judge(plan(), plan().nodes[1], HEALTHY, NO_SKEW, running=False)
    assert [(n.what, n.found) for n in notes] == [
        ("vllm", "vllm 0.32.0, torch 2; Python 3.12.1, /v/bin/python"),
        ("model", "/models/m"),
    ]


@pytest.mark.parametrize(
    ("kind", "what", "level", "word"),
    [
        ("setup", "setup", "error", "the setup fails: because"),
        ("missing", "vllm", "error", "because"),
        ("opaque", "vllm", "warning", "because"),
        ("python", "vllm", "error", "/v/bin/python fails: because"),
    ],
)
def test_d05_a_vllm_that_cannot_be_found_is_told(
    kind: str, what: str, level: str, word: str
) -> None:
    vllm = Vllm(kind, "because", "vllm", "/v/bin/python", "", {})
    found = one(vllm=vllm)
    assert (found.what, found.level, found.found) == (what, level, word)
    assert "nodes.n1" in found.next


@pytest.mark.parametrize(
    "kind", ["missing", "no-config", "offline", "denied", "unknown", "unreachable"]
)
def test_d13_a_model_that_the_node_does_not_have_is_refused_with_what_helps(kind: str) -> None:
    found = one(model=Model(kind, "/models/m", "path", True, {}, ""))
    assert (found.what, found.level) == ("model", "error")
    assert "/models/m" in found.found
    assert found.next


def test_a_model_that_is_not_looked_at_is_no_fault() -> None:
    assert findings(model=Model("unchecked", "ModelScope", "", False, {}, "")) == []


def test_d06_a_gpu_that_is_held_is_told_with_pid_user_and_command() -> None:
    holder = Holder("GPU-1", 4242, 70200, "alice", "python train.py")
    held = msgspec.structs.replace(IDLE, holders=(holder,))
    found = one(with_gpus(0, 1), gpus=held)
    assert (found.what, found.level) == ("GPU 1 of p0", "error")
    assert found.found == "held by pid 4242 (alice, python train.py), 70200 MiB"


def test_a_gpu_that_the_plan_does_not_use_may_be_held() -> None:
    held = msgspec.structs.replace(IDLE, holders=(Holder("GPU-3", 1, 1, "a", "b"),))
    assert findings(with_gpus(0, 1), gpus=held) == []


def test_the_running_cluster_may_hold_its_own_gpus() -> None:
    held = msgspec.structs.replace(IDLE, holders=(Holder("GPU-0", 1, 1, "a", "b"),))
    assert findings(with_gpus(0), gpus=held, running=True) == []


def test_a_pid_that_cannot_be_seen_is_said_to_be_so() -> None:
    held = msgspec.structs.replace(IDLE, holders=(Holder("GPU-0", 7, None, "", ""),))
    assert one(with_gpus(0), gpus=held).found == "held by pid 7 (not visible from here)"


def test_the_daemon_that_shares_a_gpu_is_a_warning() -> None:
    mps = Holder("GPU-0", 7, 30, "root", "nvidia-cuda-mps-server")
    assert one(with_gpus(0), gpus=msgspec.structs.replace(IDLE, holders=(mps,))).level == "warning"


def test_memory_in_use_by_nobody_that_is_seen_is_a_warning() -> None:
    full = Gpus("", (Gpu(0, "GPU-0", "H100", 81559, 60000),), ())
    found = one(with_gpus(0), gpus=full)
    assert (found.level, "60000 of 81559 MiB" in found.found) == ("warning", True)


def test_d09_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    found = one(with_gpus(0, 9), gpus=IDLE)
    assert (found.what, found.found) == ("GPU 9 of p0", "the node has GPUs 0, 1, 2, 3")


def test_nvidia_smi_that_fails_is_a_fault_only_where_gpus_are_planned() -> None:
    broken = Gpus("nvidia-smi is not on PATH", (), ())
    assert one(with_gpus(0), gpus=broken).level == "error"
    assert findings(gpus=broken) == []


def test_gpus_of_several_kinds_want_one_order() -> None:
    mixed = Gpus("", (*IDLE.gpus[:1], Gpu(1, "GPU-x", "NVIDIA L4", 23034, 0)), ())
    assert "CUDA_DEVICE_ORDER" in one(with_gpus(0), gpus=mixed).next
    assert findings(with_gpus(0, CUDA_DEVICE_ORDER="PCI_BUS_ID"), gpus=mixed) == []


def test_d09_a_port_that_is_taken_is_told_with_its_use_and_holder() -> None:
    found = one(busy=((N1, 21003, "pid 7 (nginx)"),))
    assert (found.what, found.level) == ("port of p0 nixl", "error")
    assert found.found == f"{N1}:21003 is taken: pid 7 (nginx)"


def test_d10_an_address_that_is_not_the_nodes_is_told_as_such() -> None:
    why = f"{HERE} cannot be bound here: Cannot assign requested address"
    found = one(node="here", busy=((HERE, 21000, why),))
    assert found.expected == "an address of the node"
    assert "data_ip" in found.next


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    found = one(disk=Disk("/mnt/ro", 9 * GIB, "is not writable"))
    assert (found.what, found.level, found.found) == ("disk", "error", "/mnt/ro is not writable")


@pytest.mark.parametrize(("free", "level"), [(1 << 20, "error"), (GIB, "warning")])
def test_little_room_is_a_warning_and_none_an_error(free: int, level: str) -> None:
    assert one(disk=Disk("/x", free, "")).level == level


def test_little_shared_memory_is_a_warning_where_ranks_share_it() -> None:
    small = 64 << 20
    assert findings(shm_bytes=small) == []
    wide = plan(
        instance("p0", "n1", "--tensor-parallel-size", "2"), instance("d0", "n2", first=21010)
    )
    found = one(wide, shm_bytes=small)
    assert (found.what, found.level, found.found) == ("/dev/shm", "warning", "64 MiB in all")
    assert [f.what for f in findings(with_gpus(0), gpus=IDLE, shm_bytes=small)] == ["/dev/shm"]


def test_a_clock_that_is_off_is_a_warning_only_where_that_is_sure() -> None:
    assert one(clock=Skew(-60.0, 0.1)).found == "60.0 s behind this machine's (± 0.1 s)"
    assert findings(clock=Skew(3.0, 1.5)) == []
    assert findings(clock=Skew(1.9, 0.0)) == []


def test_this_machines_clock_is_not_compared_with_itself() -> None:
    assert findings(node="here", clock=Skew(60.0, 0.0)) == []


def test_the_skew_is_reckoned_against_the_round_trip() -> None:
    facts = msgspec.structs.replace(HEALTHY, begun=1011.0, ended=1014.0)
    # Asked at 1000 and answered at 1004: of the 4 s the node itself took 3.
    assert skew(facts, 1000.0, 1004.0) == Skew(ahead_s=10.5, doubt_s=0.5)
