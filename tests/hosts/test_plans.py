"""What a topology says of addresses, of tunnels and of who starts what holds in networks of hosts."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

from hosts.bed import Bed, send, until
from vdisagg.cluster import leftovers

if TYPE_CHECKING:
    from hosts.network import Network


def state_of(bed: Bed, name: str) -> str:
    """What `status` says of a process."""
    (state,) = (str(p["state"]) for p in bed.status()["processes"] if p["name"] == name)
    return state


def test_d10_nodes_on_different_networks_each_find_the_controller(network: Network) -> None:
    """Nobody says the address of the machine where `up` is typed; it routes between the nodes."""
    bed = Bed(network, here=("198.18.0.1/24", "198.18.1.1/24"))
    n1, n2 = bed.node("n1", "198.18.0.11/24"), bed.node("n2", "198.18.1.12/24")
    bed.here.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    n1.run("ip", "route", "add", "198.18.1.0/24", "via", "198.18.0.1")
    n2.run("ip", "route", "add", "198.18.0.0/24", "via", "198.18.1.1")
    file = bed.topology([n1, n2], nodes={"here": {"data_ip": None}})
    plan = json.loads(bed.vdisagg("check", file, "--json").stdout)
    assert [i["handshake"]["host"] for i in plan["instances"]] == ["198.18.0.1", "198.18.1.1"]
    bed.vdisagg("up", file)
    bed.serves()
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_a_topology_of_nodes_alone_serves_from_here(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], nodes={"here": {"data_ip": None}})
    bed.vdisagg("up", file)
    bed.serves()
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_a_front_end_on_a_node_is_reached_from_here(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], front_end={"node": "n1"})
    url = json.loads(bed.vdisagg("up", file, "--json").stdout)["url"]
    assert url == f"http://{n1.address}:8000"
    bed.serves(url=url)
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_an_instance_is_started_by_hand_and_is_not_ours_to_end(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], decode={"launch": "manual"})
    with bed.start("up", file) as up:
        assert up.stderr is not None
        lines = iter(up.stderr.readline, "")
        assert next(line for line in lines if line == "start d0 on n2:\n")
        said = next(lines).rstrip("\n")
        assert bed.vdisagg("connect", file, "d0").stdout == said + "\n"
        until(lambda: state_of(bed, "d0") == "awaited", lambda: str(bed.status()))
        by_hand = n2.start("sh", "-c", f"exec env {said}")
        up.communicate(timeout=60)
        assert up.returncode == 0
    bed.serves()
    bed.is_healthy()
    assert "log is where" in bed.vdisagg("logs", "d0", check=False).stderr
    assert "d0 is not ours to end: end it where it was started" in bed.vdisagg("down").stdout
    (pid,) = (pid for pid, words in n2.processes().items() if "--headless" in words.split())
    os.kill(pid, signal.SIGTERM)
    by_hand.communicate(timeout=30)
    bed.nothing_is_left()


def test_with_a_tunnel_nothing_here_listens_on_the_network(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], control="tunnel")
    bed.vdisagg("up", file)
    bed.serves()
    assert [p["name"] for p in bed.status()["processes"]] == [
        *("controller", "tunnel-n1", "tunnel-n2"),
        *("p0", "d0", "front-end"),
    ]
    listening = bed.here.run("ss", "-Htln").stdout
    assert listening
    assert bed.here.address not in listening
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_a_tunnel_that_sshd_refuses_is_told_by_preflight_up_and_status(bed: Bed) -> None:
    n1 = bed.node("n1", options=["AllowTcpForwarding no"])
    file = bed.topology([n1], control="tunnel", timeouts={"stop_s": 1})
    reason = "n1: sshd there does not listen on 127.0.0.1:21000 for us"
    checked = bed.vdisagg("check", file, "--nodes", "--json", check=False)
    assert checked.returncode == 1
    found = json.loads(checked.stdout)["findings"]
    (wrong,) = (one for one in found if one["level"] == "error")
    assert (wrong["node"], wrong["what"]) == ("n1", "tunnel")
    assert f"n1: {wrong['found']}" == reason
    with bed.start("up", file, "--no-preflight") as up:
        assert up.stderr is not None
        said = ""
        while f"tunnel-n1: connecting ({reason}" not in said:
            said += (line := up.stderr.readline())
            assert line, said

        def is_told() -> bool:
            view = bed.status()
            (tunnel,) = (p for p in view["processes"] if p["name"] == "tunnel-n1")
            told = any(reason in problem for problem in view["problems"])
            return told and tunnel["state"] == "connecting" and reason in tunnel["detail"]

        until(is_told, lambda: str(bed.status()))
        send(up, 2)
        said += up.stderr.read()
        up.communicate(timeout=60)
    assert "tunnel-n1: ready" not in said
    bed.nothing_is_left()


def test_controller_and_front_end_on_a_node_go_on_without_the_machine_that_launched_them(
    bed: Bed,
) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], controller={"node": "n1"}, front_end={"node": "n1"})
    bed.vdisagg("up", file)
    url = f"http://{n1.address}:8000"
    bed.serves(url=url)
    bed.is_healthy()
    until(lambda: bed.status()["controller_answers"])
    until(lambda: "p0→d0" in bed.vdisagg("events", check=False).stdout)
    assert [words for words in bed.here.processes().values() if "vdisagg" in words] == []
    kept = n1.home / ".vdisagg" / "net" / "controller"
    assert (kept / leftovers.JOURNAL_FILE).read_bytes()
    bed.vdisagg("down")
    bed.nothing_is_left()
    left = {path.name for path in kept.iterdir()}
    assert left.isdisjoint(leftovers.OF_A_RUN), "the token ids of prompts stand in some of these"
    assert leftovers.EVENTS_FILE in left


def test_a_controller_on_a_node_serves_a_front_end_and_an_engine_here(bed: Bed) -> None:
    (n1,) = bed.nodes(1)
    file = bed.topology([n1, bed.here], controller={"node": "n1"}, front_end={"node": "here"})
    bed.vdisagg("up", file)
    bed.serves()
    bed.vdisagg("down")
    bed.nothing_is_left()
