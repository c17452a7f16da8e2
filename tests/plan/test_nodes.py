"""Plans over several machines: which address is said where, what runs where, which ports are whose."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vdisagg.errors import TopologyError, UsageError
from vdisagg.plan.addresses import LookUp, look_ups, nodes_that_dial
from vdisagg.plan.commands import command_line
from vdisagg.plan.make import Here
from vdisagg.plan.model import Address, Plan, Ssh
from vdisagg.topology.load import load

if TYPE_CHECKING:
    from collections.abc import Callable

    Planned = Callable[..., Plan]

HERE = Here(
    "/venv/bin/python",
    "/venv/bin/vllm",
    Path("/state/t"),
    Path("/home/me/.vdisagg"),
    home="/home/me",
    routes={"n1": "192.0.2.1", "n2": "198.51.100.1"},
)
TWO = """\
model: org/m
nodes:
  n1: {gpus: 1, ssh: me@box1, data_ip: 192.0.2.11}
  n2: {gpus: 1, ssh: box2, data_ip: 198.51.100.12}
prefill: {node: n1}
decode: {node: n2}
"""
SIX = TWO.replace("192.0.2.11", "2001:db8::11").replace("198.51.100.12", "2001:DB8:0::12")


def test_the_controller_and_the_front_end_are_here_where_all_nodes_are_elsewhere(
    planned: Planned,
) -> None:
    plan = planned(TWO, HERE)
    assert plan.controller.node == plan.front_end.process.node == "here"
    assert plan.front_end.url == "http://127.0.0.1:8000"
    assert plan.front_end.handshake.host == "127.0.0.1"
    assert [node.name for node in plan.ssh_nodes()] == ["n1", "n2"]


def test_d10_each_instance_gets_the_controllers_address_on_its_own_network(
    planned: Planned,
) -> None:
    p0, d0 = planned(TWO, HERE).instances
    for instance, controller, own in (
        (p0, "192.0.2.1", "192.0.2.11"),
        (d0, "198.51.100.1", "198.51.100.12"),
    ):
        assert {address.host for address in instance.control} == {controller}
        argv = instance.process.argv
        assert argv[argv.index("--data-parallel-address") + 1] == controller
        env = instance.process.env
        assert env["VLLM_DP_MASTER_IP"] == controller
        assert env["VLLM_HOST_IP"] == env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == own


def test_d10_what_the_topology_names_is_the_controllers_address_for_all(planned: Planned) -> None:
    named = TWO.replace("  n1:", "  gw: {device: cpu, data_ip: 203.0.113.9}\n  n1:")
    plan = planned(named + "controller: {node: gw}\n", HERE)
    assert {a.host for i in plan.instances for a in i.control} == {"203.0.113.9"}
    assert plan.front_end.handshake.host == "127.0.0.1"


def test_d10_ipv6_addresses_have_brackets_in_endpoints_and_none_in_variables(
    planned: Planned,
) -> None:
    six = dataclasses.replace(HERE, routes={"n1": "2001:db8::1", "n2": "2001:db8::1"})
    p0, d0 = planned(SIX, six).instances
    assert p0.handshake.zmq == "tcp://[2001:db8::1]:21000"
    argv = p0.process.argv
    assert argv[argv.index("--data-parallel-address") + 1] == "2001:db8::1"
    assert p0.process.env["VLLM_DP_MASTER_IP"] == "2001:db8::1"
    assert d0.process.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "2001:db8::12"


def test_an_interfaces_address_is_used_once_it_is_looked_up(planned: Planned) -> None:
    text = TWO.replace("data_ip: 192.0.2.11", "interface: ib0")
    found = dataclasses.replace(HERE, addresses={"n1": "10.1.0.11"})
    assert planned(text, found).instances[0].process.env["VLLM_HOST_IP"] == "10.1.0.11"
    unknown = planned(text, HERE).instances[0].process.env["VLLM_HOST_IP"]
    assert unknown == "ADDRESS-OF-ib0-ON-n1"


def test_a_name_that_openssh_resolves_stands_for_itself_until_it_is_looked_up(
    planned: Planned,
) -> None:
    text = TWO.replace(", data_ip: 192.0.2.11", "")
    assert planned(text, HERE).nodes[0].address == "box1"
    found = dataclasses.replace(HERE, addresses={"n1": "192.0.2.55"})
    assert planned(text, found).nodes[0].address == "192.0.2.55"


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ("{gpus: 1, ssh: box1, data_ip: 192.0.2.11}", ()),
        ("{gpus: 1, ssh: box1, interface: ib0}", (LookUp("n1", "ib0"),)),
        ("{gpus: 1, ssh: box1}", (LookUp("n1", None),)),
        ("{gpus: 1, interface: eth1}", (LookUp("n1", "eth1"),)),
        ("{gpus: 1}", ()),
    ],
)
def test_only_addresses_that_are_not_said_are_looked_up(
    tmp_path: Path, node: str, wanted: tuple[LookUp, ...]
) -> None:
    spare = "nodes:\n  spare: {gpus: 1, ssh: spare}\n"  # nothing runs there
    text = TWO.replace("{gpus: 1, ssh: me@box1, data_ip: 192.0.2.11}", node)
    file = tmp_path / "t.yaml"
    file.write_text(text.replace("nodes:\n", spare))
    topology = load(file)
    assert look_ups(topology) == wanted
    assert "spare" not in nodes_that_dial(topology)


def test_engines_here_advertise_the_address_that_other_nodes_reach(planned: Planned) -> None:
    text = TWO.replace("  n1: {gpus: 1, ssh: me@box1, data_ip: 192.0.2.11}", "  n1: {gpus: 1}")
    one_way = dataclasses.replace(HERE, routes={"n2": "198.51.100.1"})
    p0, d0 = planned(text, one_way).instances
    assert p0.process.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "198.51.100.1"
    assert p0.handshake.host == "127.0.0.1"
    assert d0.handshake.host == "198.51.100.1"


def test_engines_here_cannot_advertise_two_addresses(planned: Planned) -> None:
    text = TWO.replace("prefill: {node: n1}", "prefill: {instances: [{node: n1}, {node: h}]}")
    text = text.replace("  n1:", "  h: {gpus: 1}\n  n1:")
    with pytest.raises(UsageError, match=r"nodes\.h: p1 runs on this machine, which other nodes"):
        planned(text, HERE)
    planned(text.replace("h: {gpus: 1}", "h: {gpus: 1, data_ip: 192.0.2.1}"), HERE)


def test_the_plan_says_how_each_node_is_reached(planned: Planned) -> None:
    text = TWO.replace("me@box1", '{host: box1, port: 2222, identity_file: "~/.ssh/a b"}')
    n1 = planned(text.replace("n2: {", "n2: {work_dir: /data/, ")).nodes[0]
    assert n1.ssh == Ssh("box1", None, 2222, "~/.ssh/a b")
    assert n1.work_directory == "~/.vdisagg"
    assert [node.name for node in planned(TWO).nodes] == ["n1", "n2", "here"]


def test_paths_of_other_machines_stay_seen_from_there(planned: Planned) -> None:
    text = TWO.replace("gpus: 1,", "gpus: 1, vllm: ~/v env/bin/vllm, work_dir: ~/w,", 1)
    p0, _ = (instance.process for instance in planned(text).instances)
    assert p0.argv[0] == "~/v env/bin/vllm"
    assert p0.directory == "~/w/t/p0"
    assert command_line(p0).count(" ~/'v env/bin/vllm' serve org/m ") == 1


def test_a_log_dir_in_the_home_is_in_each_nodes_own_home(planned: Planned) -> None:
    plan = planned(TWO + "log_dir: ~/logs\n", HERE)
    assert plan.instances[0].process.directory == "~/logs/t/p0"
    assert plan.controller.directory == "/home/me/logs/t/controller"


def test_a_shell_reads_a_home_directory_as_one(planned: Planned, tmp_path: Path) -> None:
    text = TWO.replace("gpus: 1,", "device: cpu, work_dir: ~/it's mine, vllm: ~/a b/vllm,", 1)
    process = planned(text).instances[0].process
    program = tmp_path / "a b" / "vllm"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s|%s" "$PYTHONPATH" "$0"\n')
    program.chmod(0o700)
    done = subprocess.run(
        ["sh", "-c", command_line(process)],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout == f"{tmp_path}/it's mine/t/p0/switches|{program}"


def test_a_front_end_elsewhere_listens_where_people_here_reach_it(planned: Planned) -> None:
    plan = planned(TWO + "front_end: {node: n1}\n", HERE)
    assert plan.front_end.http == Address("192.0.2.11", 8000)
    assert plan.front_end.handshake.host == "192.0.2.11"
    assert plan.front_end.url == "http://192.0.2.11:8000"
    assert plan.controller.node == "here"
    every = planned(SIX + "front_end: {node: n1, host: '::'}\n", HERE)
    assert every.front_end.url == "http://[2001:db8::11]:8000"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("control: tunnel\ncontroller: {node: n1}\n", "controller.node: is n1, and tunnels begin"),
        ("front_end: {node: n1, host: '::1'}\n", "front_end.host: is a loopback address of n1"),
        ("control: tunnel\nfront_end: {node: n1}\n", "front_end.node: is n1, and `control: tunn"),
    ],
)
def test_places_that_would_not_work_are_refused(planned: Planned, text: str, fault: str) -> None:
    with pytest.raises(TopologyError, match=fault.replace("[", r"\[")) as caught:
        planned(TWO + text, HERE)
    assert len(caught.value.findings) == 1


def test_a_tunnel_makes_loopback_of_every_control_address_and_of_no_other(
    planned: Planned,
) -> None:
    plan = planned(TWO + "control: tunnel\n", HERE)
    p0, d0 = plan.instances
    assert plan.control == "tunnel"
    assert {a.host for i in plan.instances for a in i.control} == {"127.0.0.1"}
    assert p0.process.env["VLLM_DP_MASTER_IP"] == "127.0.0.1"
    assert p0.process.env["VLLM_HOST_IP"] == "192.0.2.11"
    assert d0.process.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "198.51.100.12"
    assert plan.tunnelled() == {"n1": (21000, 21001, 21002), "n2": (21004, 21005, 21006)}
    assert [process.name for process in plan.processes()] == [
        *("controller", "tunnel-n1", "tunnel-n2"),
        *("p0", "d0", "front-end"),
    ]
    tunnel = plan.tunnels[0]
    assert (tunnel.kind, tunnel.node) == ("tunnel", "here")
    assert tunnel.argv == (
        "/venv/bin/python",
        *("-m", "vdisagg.launch.tunnel", "/state/t", "n1"),
    )
    assert tunnel.directory == "/home/me/.vdisagg/t/tunnel-n1"


def test_instances_here_need_no_tunnel(planned: Planned) -> None:
    text = TWO.replace("  n1: {gpus: 1, ssh: me@box1, data_ip: 192.0.2.11}", "  n1: {gpus: 1}")
    plan = planned(text + "control: tunnel\n", dataclasses.replace(HERE, routes={"n2": "::1"}))
    assert [process.name for process in plan.tunnels] == ["tunnel-n2"]


def test_d09_each_port_is_said_where_it_is_bound(planned: Planned) -> None:
    plan = planned(TWO, HERE)
    assert {str(address): what for address, what in plan.ports_of("n1").items()} == {
        "192.0.2.11:21003": "p0 nixl"
    }
    assert {str(address): what for address, what in plan.ports_of("here").items()} == {
        "192.0.2.1:21000": "p0 handshake",
        "192.0.2.1:21001": "p0 requests",
        "192.0.2.1:21002": "p0 outputs",
        "198.51.100.1:21004": "d0 handshake",
        "198.51.100.1:21005": "d0 requests",
        "198.51.100.1:21006": "d0 outputs",
        "127.0.0.1:21008": "front end handshake",
        "127.0.0.1:8000": "front end HTTP",
    }
    assert len(plan.ports()) == 10


def test_d09_a_tunnels_ports_must_be_free_on_both_ends(planned: Planned) -> None:
    plan = planned(TWO + "control: tunnel\n", HERE)
    assert list(map(str, plan.ports_of("n2"))) == [
        *("127.0.0.1:21004", "127.0.0.1:21005", "127.0.0.1:21006"),
        "198.51.100.12:21007",
    ]
    assert Address("127.0.0.1", 21004) in plan.ports_of("here")


MANUAL = TWO.replace("decode: {node: n2}", "decode: {node: n2, launch: manual}")


def test_what_is_started_by_hand_is_planned_and_is_not_ours(planned: Planned) -> None:
    plan = planned(MANUAL, HERE)
    assert [i.name for i in plan.manual_instances()] == ["d0"]
    assert [process.name for process in plan.processes()] == ["controller", "p0", "front-end"]
    assert [node.name for node in plan.ssh_nodes()] == ["n1"]
    assert plan.ports_of("n2") == {}
    assert Address("198.51.100.12", 21007) in plan.ports()
    assert plan.instances[1].process.argv == planned(TWO, HERE).instances[1].process.argv


def test_what_is_started_by_hand_where_no_tunnel_leads_is_refused(planned: Planned) -> None:
    """Its command would name a loopback address where nobody listens."""
    text = MANUAL.replace("ssh: box2, ", "").replace(
        "nodes:\n", "nodes:\n  here: {device: cpu, data_ip: 192.0.2.1}\n"
    )
    assert planned(text, HERE).instances[1].handshake.host == "192.0.2.1"
    with pytest.raises(TopologyError) as caught:
        planned(text + "control: tunnel\n", HERE)
    assert str(caught.value).endswith(
        ":5:7 nodes.n2: has no `ssh:`, so no tunnel leads there, and d0 could not dial in; say `ssh:`, or "
        "`control: direct` and `data_ip:` in nodes.here; if it is this machine, let d0 be on here"
    )


def test_what_is_started_by_hand_beside_the_controller_needs_no_tunnel(planned: Planned) -> None:
    text = MANUAL.replace("node: n2", "node: here, gpus: []").replace(
        "  n2: {gpus: 1, ssh: box2, data_ip: 198.51.100.12}",
        "  here: {gpus: 1, data_ip: 192.0.2.1}",
    )
    plan = planned(text.replace(", gpus: []", "") + "control: tunnel\n", HERE)
    assert plan.instances[1].handshake.host == "127.0.0.1"


def test_a_side_started_by_hand_may_have_an_engine_that_is_ours(planned: Planned) -> None:
    text = (
        TWO.replace(
            "decode: {node: n2}",
            "decode: {node: n2, launch: manual, instances: [{launch: auto}, {node: n1, gpus: []}]}",
        )
        .replace("gpus: 1", "device: cpu")
        .replace(", gpus: []", "")
    )
    assert [i.manual for i in planned(text, HERE).instances] == [False, False, True]


def test_whoever_starts_an_engine_by_hand_gives_out_its_gpus(planned: Planned) -> None:
    text = MANUAL.replace("n2: {gpus: 1,", "n2: {")
    d0 = planned(text, HERE).instances[1]
    assert d0.gpus == ()
    assert "CUDA_VISIBLE_DEVICES" not in d0.process.env
    named = text.replace("launch: manual", "launch: manual, gpus: [5]")
    assert planned(named, HERE).instances[1].process.env["CUDA_VISIBLE_DEVICES"] == "5"
    with pytest.raises(TopologyError, match="has no `gpus`, and d0 should run there"):
        planned(text.replace("launch: manual", "launch: auto"), HERE)


def test_an_engine_started_by_hand_needs_no_file_of_ours(planned: Planned) -> None:
    d0 = planned(MANUAL.replace("gpus: 1", "device: cpu"), HERE).instances[1].process
    assert not d0.switches
    assert "PYTHONPATH" not in d0.env
    assert not [name for name in d0.env if name.startswith("VDISAGG")]


@pytest.mark.parametrize("extra", ["", "control: tunnel\n"])
def test_e02_engines_beyond_a_network_ping_and_notice_within_the_limit(
    planned: Planned, extra: str
) -> None:
    text = TWO.replace("  n1:", "  h: {device: cpu, data_ip: 192.0.2.1}\n  n1:", 1)
    text = text.replace("{node: n1}", "{instances: [{node: n1}, {node: h}]}")
    plan = planned(f"{text}{extra}heartbeat: {{interval_s: 5, misses: 3}}\n", HERE)
    p0, p1, d0 = (instance.process for instance in plan.instances)
    assert (p0.env["VDISAGG_PING_S"], d0.env["VDISAGG_PING_S"]) == ("5", "5")
    assert p0.env["PYTHONPATH"] == "~/.vdisagg/t/p0/switches"
    assert p0.switches
    assert p1.switches, "its node is a CPU"
    assert "VDISAGG_PING_S" not in p1.env, "it is on the controller's machine"


def test_e02_the_controllers_own_node_is_no_network_away_and_others_are(planned: Planned) -> None:
    text = TWO.replace("  n1:", "  h: {gpus: 1, data_ip: 192.0.2.1}\n  n1:", 1).replace(
        "{node: n2}", "{node: h}"
    )
    there = planned(text + "controller: {node: n1}\n", HERE)
    p0, d0 = (instance.process for instance in there.instances)
    assert "VDISAGG_PING_S" not in p0.env
    assert not p0.switches
    assert d0.env["VDISAGG_PING_S"] == "10"
    quick = planned(TWO + "heartbeat: {interval_s: 0.5, misses: 1}\n", HERE)
    assert quick.instances[0].process.env["VDISAGG_PING_S"] == "1"


def test_a_controller_on_a_node_is_dialled_at_the_nodes_address_and_has_its_package_beside_it(
    planned: Planned,
) -> None:
    text = TWO.replace("gpus: 1, ssh: me@box1", "python: /venv/bin/python, gpus: 1, ssh: me@box1")
    plan = planned(text + "controller: {node: n1}\n", HERE)
    assert plan.controller.argv == (
        *("/venv/bin/python", "-m", "vdisagg.control"),
        "~/.vdisagg/t/controller",
    )
    assert plan.controller.env["PYTHONPATH"] == "~/.vdisagg/t/controller/package"
    assert {address.host for i in plan.instances for address in i.control} == {"192.0.2.11"}
    assert plan.front_end.process.node == "n1"
    assert plan.front_end.handshake.host == "192.0.2.11"


@pytest.mark.parametrize("first", ["#!{python}", "#!/bin/sh"])
def test_the_interpreter_is_that_of_the_nodes_vllm(
    planned: Planned, tmp_path: Path, first: str
) -> None:
    """By the first line of the script, or, where that is a shell's, beside the script."""
    (tmp_path / "python").symlink_to(sys.executable)
    vllm = tmp_path / "vllm"
    vllm.write_text(first.format(python=sys.executable) + "\n")
    vllm.chmod(0o755)
    text = TWO.replace("gpus: 1, ssh: me@box1", f"vllm: {vllm}, gpus: 1, ssh: me@box1")
    argv = planned(text + "controller: {node: n1}\n", HERE).controller.argv
    assert argv[-3:] == ("-m", "vdisagg.control", "~/.vdisagg/t/controller")
    done = subprocess.run(
        (*argv[:-3], "-c", "import sys; print(sys.executable)"), capture_output=True, text=True
    )
    assert done.stdout.strip() in (sys.executable, str(tmp_path / "python")), done.stderr
