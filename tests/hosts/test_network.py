"""The network that other tests stand on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.bed import until
from hosts.network import Host, Network


def reaches(network: Network, one: str, address: str) -> bool:
    """Whether a TCP connection to port 22 of an address comes about."""
    script = "import socket,sys; socket.create_connection((sys.argv[1], 22), 0.5)"
    done = network.hosts[one].run(sys.executable, "-c", script, address, check=False)
    return done.returncode == 0


def test_hosts_have_a_name_a_home_and_processes_of_their_own(network: Network) -> None:
    here = network.host("here", "198.18.0.1/24")
    n1 = network.host("n1", "198.18.0.11/24")
    n1.serve_ssh(2222)
    here.trust(n1)
    done = here.run("ssh", "-p", "2222", "n1", "hostname; cd; pwd; ps ax -o args= | grep -c sshd:")
    assert done.stdout.split()[:2] == ["n1", str(n1.home)]
    assert (
        here.run("cat", "/proc/sys/kernel/random/boot_id").stdout
        != n1.run("cat", "/proc/sys/kernel/random/boot_id").stdout
    )
    until(lambda: here.processes() == n1.processes() == {})
    with n1.start("sleep", "1000") as sleeper:
        until(lambda: list(n1.processes().values()) == ["sleep 1000"])
        assert here.processes() == {}
        n1.power_off()
        assert sleeper.wait(30) != 0


def test_hosts_of_one_subnet_reach_each_other_and_no_others(network: Network) -> None:
    network.host("a", "198.18.0.1/24")
    network.host("b", "198.18.0.2/24", "fd00:198:18::2/64").serve_ssh()
    network.host("c", "fd00:198:18::3/64").serve_ssh()
    assert reaches(network, "a", "198.18.0.2")
    assert reaches(network, "c", "fd00:198:18::2")
    assert reaches(network, "b", "fd00:198:18::3")
    assert not reaches(network, "a", "fd00:198:18::3")
    with network.hosts["a"].entered():
        socket.create_connection(("198.18.0.2", 22), 5).close()


def test_a_cable_is_pulled_out_and_plugged_in_again(network: Network) -> None:
    network.host("a", "198.18.0.1/24")
    b = network.host("b", "198.18.0.2/24", "198.18.1.2/24")
    b.serve_ssh()
    b.cut(1)
    assert reaches(network, "a", "198.18.0.2")
    b.cut()
    assert not reaches(network, "a", "198.18.0.2")
    b.restore()
    until(lambda: reaches(network, "a", "198.18.0.2"))


def connected(network: Network) -> socket.socket:
    """A connection of host a to the sshd of host b; another port of b's would do as well."""
    with network.hosts["a"].entered():
        found = socket.create_connection(("198.18.0.2", 22), 5)
    assert found.recv(4) == b"SSH-"
    found.settimeout(0.5)
    while found.recv(1) != b"\n":
        pass
    return found


def answers(connection: socket.socket) -> bool:
    """Whether sshd says something to what it is told."""
    try:
        connection.sendall(b"SSH-2.0-x\r\n")
        return bool(connection.recv(1))
    except TimeoutError:
        return False


def pair(network: Network) -> tuple[Host, Host]:
    """Two hosts, the second with an sshd."""
    a = network.host("a", "198.18.0.1/24")
    b = network.host("b", "198.18.0.2/24")
    b.serve_ssh()
    return a, b


def test_what_a_port_swallows_is_gone_without_a_word(network: Network) -> None:
    """For new connections, and for those that are there; other ports are as before."""
    a, b = pair(network)
    with b.start(sys.executable, "-m", "http.server", "80"), connected(network) as old:
        http = (sys.executable, "-c", "import socket; socket.create_connection(('b', 80), 0.5)")
        until(lambda: a.run(*http, check=False).returncode == 0)
        b.swallow(22)
        assert not reaches(network, "a", "198.18.0.2")
        assert not answers(old)
        a.run(*http)
        b.unswallow()
        until(lambda: answers(old))
        assert reaches(network, "a", "198.18.0.2")


def test_one_connection_alone_is_forgotten(network: Network) -> None:
    _, b = pair(network)
    with connected(network) as one, connected(network) as other:
        b.swallow(22, ends=[one.getsockname()[1]])
        assert sorted(b.peers_of(22)) == sorted(c.getsockname()[1] for c in (one, other))
        assert not answers(one)
        until(lambda: answers(other))
        assert reaches(network, "a", "198.18.0.2")


def test_two_hosts_lose_sight_of_each_other_and_of_nobody_else(network: Network) -> None:
    a, b = pair(network)
    network.host("c", "198.18.0.3/24")
    a.lose_sight(b)
    assert not reaches(network, "a", "198.18.0.2")
    assert reaches(network, "c", "198.18.0.2")
    a.regain_sight(b)
    until(lambda: reaches(network, "a", "198.18.0.2"))


def test_connections_are_reset_at_both_ends(network: Network) -> None:
    a, b = pair(network)
    with connected(network) as connection:
        assert b.reset(a) == 1
        with pytest.raises(ConnectionError):
            answers(connection)
    assert reaches(network, "a", "198.18.0.2")


def test_an_sshd_that_is_frozen_says_nothing_and_goes_on(network: Network) -> None:
    _, b = pair(network)
    with connected(network) as connection:
        b.sshds[0].freeze()
        assert not answers(connection)
        b.sshds[0].thaw()
        until(lambda: answers(connection))
        b.sshds[0].freeze()  # and its end is not held up by that


def test_a_reboot_ends_everything_and_keeps_files(network: Network) -> None:
    a = network.host("a", "198.18.0.1/24")
    b = network.host("b", "198.18.0.2/24")
    b.serve_ssh()
    a.trust(b)
    a.run("ssh", "b", "echo kept >file; setsid sleep 1000 </dev/null >log 2>&1 &")
    before = a.run("ssh", "b", "cat /proc/sys/kernel/random/boot_id").stdout
    until(lambda: list(b.processes().values()) == ["sleep 1000"])
    b.reboot()
    assert b.processes() == {}
    after = a.run("ssh", "b", "cat file /proc/sys/kernel/random/boot_id").stdout.split()
    assert after[0] == "kept"
    assert after[1] != before.strip()


def test_nothing_outlives_a_run_that_is_killed(network: Network, tmp_path: Path) -> None:
    """A process makes a network, with something running in it, and is killed."""
    script = (
        "import sys; from pathlib import Path; from hosts.network import Network\n"
        "host = Network(Path(sys.argv[1])).host('x', '198.18.0.1/24')\n"
        "host.serve_ssh(); host.start('setsid', 'sleep', '1000')\n"
        "print(host.space.init, flush=True); sys.stdin.read()"
    )
    (tmp_path / "other").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "other")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as run:
        assert run.stdout is not None
        space = Path(f"/proc/{int(run.stdout.readline())}/ns/pid").readlink()

        def members() -> list[str]:
            found = []
            for entry in Path("/proc").iterdir():
                try:
                    if entry.name.isdigit() and (entry / "ns/pid").readlink() == space:
                        found.append(entry.name)
                except OSError:
                    continue
            return found

        until(lambda: len(members()) == 4)  # init and what keeps it, sshd, sleep
        run.kill()
    until(lambda: not members(), lambda: str(members()))
