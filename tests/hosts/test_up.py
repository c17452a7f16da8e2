"""`vdisagg up` and what follows on nodes over SSH, in the networks that people have."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pytest

from hosts.bed import Bed, send, until
from hosts.network import Host, Network

RC = """\
echo "Welcome to this machine"
echo "Quota: 93 % of 20 GB"
printf 'no newline here'
echo "bash: warning: setlocale: LC_ALL: cannot change locale (xx_XX)" >&2
"""


def environments(host: Host) -> list[str]:
    """Every variable of every process that runs there."""
    found: list[str] = []
    for pid in host.processes():
        with contextlib.suppress(OSError):  # it has just ended
            found += Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    return found


def test_two_nodes_serve_show_themselves_and_go(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2])
    up = bed.vdisagg("up", file, "--json")
    assert json.loads(up.stdout)["name"] == "net"
    bed.serves()
    bed.runs(here=4, n1=2, n2=2)
    bed.is_healthy()
    assert [p["node"] for p in bed.status()["processes"]] == ["here", "n1", "n2", "here"]
    assert "stub of vLLM" in bed.vdisagg("logs", "d0").stdout
    assert "already" in bed.vdisagg("up", file).stdout
    down = bed.vdisagg("down")
    assert "cluster net is down: 4 processes ended" in down.stdout
    bed.nothing_is_left()
    assert (n2.home / ".vdisagg/net/d0/log").read_text().startswith("stub of vLLM"), "logs stay"
    assert bed.vdisagg("down").returncode == 0


def test_logs_follow_a_process_on_a_node_until_ctrl_c(bed: Bed) -> None:
    (n1,) = bed.nodes(1)
    bed.vdisagg("up", bed.topology([n1]))
    log = n1.home / ".vdisagg/net/p0/log"
    with bed.start("logs", "p0", "-f", "-n", "1") as following:
        assert following.stdout is not None
        until(lambda: any("logfile" in words for words in n1.processes().values()))
        with log.open("a") as file:
            file.write("a line that comes later\n")
        while following.stdout.readline() != "a line that comes later\n":
            assert following.poll() is None
        send(following, signal.SIGINT)
        assert following.wait(30) == 0
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_sshd_on_another_port(bed: Bed) -> None:
    node = bed.node("n1", port=2222)
    bed.vdisagg("up", bed.topology([node]))
    bed.serves()
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_a_node_behind_a_jump_host(network: Network) -> None:
    """Its sshd is reached through the jump host only; data goes over a network of its own."""
    bed = Bed(network, here=("198.18.0.1/24", "198.18.1.1/24"))
    bed.node("jump", "198.18.0.5/24", "198.18.2.5/24", port=2222)
    n1 = bed.node("n1", "198.18.2.11/24", "198.18.1.11/24")
    bed.here.write_ssh_config(
        "Host n1\n  HostName 198.18.2.11\n  User root\n  ProxyJump root@jump:2222\n"
    )
    nodes = {
        "here": {"data_ip": "198.18.1.1"},
        "n1": {"ssh": "n1", "data_ip": "198.18.1.11"},
    }
    bed.vdisagg("up", bed.topology([n1], nodes=nodes))
    bed.serves()
    bed.is_healthy()
    bed.vdisagg("down")
    bed.nothing_is_left()


@pytest.mark.parametrize("said", [{"data_ip": "198.18.1.11"}, {"interface": "eth1"}], ids=str)
def test_d10_data_goes_over_the_data_address(network: Network, said: dict[str, str]) -> None:
    """With the network that SSH uses cut, the cluster serves on."""
    bed = Bed(network, here=("198.18.0.1/24", "198.18.1.1/24"))
    n1 = bed.node("n1", "198.18.0.11/24", "198.18.1.11/24")
    n2 = bed.node("n2", "198.18.0.12/24", "198.18.1.12/24")
    nodes = {
        "here": {"data_ip": "198.18.1.1"},
        "n1": said,
        "n2": {"data_ip": "198.18.1.12"},
    }
    bed.vdisagg("up", bed.topology([n1, n2], nodes=nodes))
    for host in (bed.here, n1, n2):
        host.cut(0)
    bed.serves()
    for host in (bed.here, n1, n2):
        host.restore(0)
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_d10_nodes_that_speak_ipv6_only(network: Network) -> None:
    bed = Bed(network, here=("fd00:198:18::1/64",))
    n1 = bed.node("n1", "fd00:198:18::11/64")
    n2 = bed.node("n2", "fd00:198:18::12/64", port=2222)
    bed.vdisagg("up", bed.topology([n1, n2]))
    bed.serves()
    bed.is_healthy()
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_d05_noisy_rc_files_and_banners_break_nothing(bed: Bed) -> None:
    n1 = bed.node("n1", options=[f"Banner {bed.network.directory}/banner"])
    (bed.network.directory / "banner").write_text("Authorized use only\n" * 20)
    for name in (".bashrc", ".profile", ".bash_profile", ".ssh/rc"):
        (n1.home / name).write_text(RC)
    bed.vdisagg("up", bed.topology([n1]))
    bed.serves()
    logs = bed.vdisagg("logs", "p0").stdout
    assert logs.startswith("stub of vLLM")
    assert "Quota" not in logs
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_d05_setup_puts_vllm_on_the_path_and_python_is_named(bed: Bed) -> None:
    """Nothing of it is in the path of a login that isn't interactive."""
    n1, n2 = bed.nodes(2)
    setup = f"export PATH={bed.stub.parent}:$PATH FROM_SETUP=yes"
    nodes = {"n1": {"vllm": None, "setup": setup}, "n2": {"vllm": None, "setup": setup}}
    bed.vdisagg("up", bed.topology([n1, n2], nodes=nodes))
    bed.serves()
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_d13_secrets_arrive_and_stand_nowhere(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    nodes = {name: {"secrets": ["HF_TOKEN"]} for name in ("n1", "n2")}
    file = bed.topology(
        [n1, n2], nodes=nodes, front_end={"node": "n2", "api_key": {"env": "THE_KEY"}}
    )
    secrets = {"HF_TOKEN": "hf_s3cr3t-t0ken", "THE_KEY": "sk-s3cr3t-key"}
    refused = bed.vdisagg("up", file, check=False)
    assert refused.returncode == 2
    assert "HF_TOKEN" in refused.stderr
    up = bed.vdisagg("up", file, environment=secrets)
    for host in (n1, n2):
        assert "HF_TOKEN=hf_s3cr3t-t0ken" in environments(host)
    assert "VLLM_API_KEY=sk-s3cr3t-key" in environments(n2)
    status = bed.vdisagg("status", "--json", check=False)
    said = [up.stdout, up.stderr, status.stdout, *bed.said()]
    assert not [text for text in said if "s3cr3t" in text]
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_d15_an_engine_that_prints_much_blocks_nothing(bed: Bed) -> None:
    (n1,) = bed.nodes(1)
    file = bed.topology([n1], engine={"env": {"STUB_NOISE": 10_000_000}})
    bed.vdisagg("up", file)
    bed.serves()
    assert (n1.home / ".vdisagg/net/p0/log").stat().st_size > 9_999_000
    assert bed.vdisagg("logs", "p0", "-n", "3").stdout == "noise\n" * 3
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_d15_24_engines_on_a_host_whose_sshd_takes_few_logins_at_once(bed: Bed) -> None:
    n1 = bed.node("n1", options=["MaxStartups 10:30:60", "MaxSessions 4"])
    bed.vdisagg("up", bed.topology([n1], decode={"count": 23}))
    bed.serves()
    bed.runs(n1=48)
    bed.is_healthy()
    bed.vdisagg("down")
    bed.nothing_is_left()
