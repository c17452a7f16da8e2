"""The network that other tests stand on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from hosts.bed import until
from hosts.network import Network


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
    assert here.processes() == n1.processes() == {}
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


def test_a_reboot_ends_everything_and_keeps_files(network: Network) -> None:
    a = network.host("a", "198.18.0.1/24")
    b = network.host("b", "198.18.0.2/24")
    b.serve_ssh()
    a.trust(b)
    a.run("ssh", "b", "echo kept >file; setsid sleep 1000 </dev/null >log 2>&1 &")
    before = a.run("ssh", "b", "cat /proc/sys/kernel/random/boot_id").stdout
    assert list(b.processes().values()) == ["sleep 1000"]
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
