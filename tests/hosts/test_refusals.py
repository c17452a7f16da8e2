"""What `up` refuses to begin with nodes over SSH: it says where, what and what next, and starts nothing."""

from __future__ import annotations

import signal
import sys

from hosts.bed import Bed, send
from hosts.keys import make_key
from hosts.network import Host
from hosts.sshd import name_of

LISTEN = "import socket,time; s = socket.create_server(('', 21003)); print(1); time.sleep(1000)"


def refused(bed: Bed, *hosts: Host, code: int = 1, **parts: object) -> str:
    """What `up` says as it refuses."""
    up = bed.vdisagg("up", bed.topology(list(hosts), **parts), check=False)
    assert up.returncode == code, up.stdout + up.stderr
    bed.nothing_is_left()
    return up.stdout + up.stderr


def test_d01_an_unknown_host_key_is_refused_with_the_command_that_mends_it(bed: Bed) -> None:
    n1 = bed.node("n1", port=2222)
    known = bed.here.home / ".ssh" / "known_hosts"
    text = known.read_text()
    known.write_text("")
    said = refused(bed, n1)
    assert "[198.18.0.11]:2222" in said
    assert "ssh-keyscan" in said or "ssh -p 2222" in said
    known.write_text(text)
    bed.vdisagg("up", bed.topology([n1]))


def test_d01_a_changed_host_key_is_refused_with_host_port_file_and_line(bed: Bed) -> None:
    n1 = bed.node("n1", port=2222)
    other = make_key(bed.network.directory / "other").public.split()[:2]
    known = bed.here.home / ".ssh" / "known_hosts"
    known.write_text(f"# a comment\n{name_of(n1.address, 2222)} {' '.join(other)}\n")
    said = refused(bed, n1)
    for part in ("n1", "[198.18.0.11]:2222", str(known), "2"):
        assert part in said


def test_d01_a_key_for_port_22_says_nothing_of_another_port(bed: Bed) -> None:
    n1 = bed.node("n1", port=2222)
    known = bed.here.home / ".ssh" / "known_hosts"
    other = make_key(bed.network.directory / "other").public.split()[:2]
    known.write_text(f"{n1.address} {' '.join(other)}\n{n1.sshds[0].known_hosts()}")
    bed.vdisagg("up", bed.topology([n1]))
    bed.serves()


def test_d02_an_alias_means_what_ssh_takes_it_for(bed: Bed) -> None:
    n1 = bed.node("n1", port=2222)
    key = make_key(bed.here.home / "keys" / "cluster")
    n1.sshds[0].authorize(key)
    (bed.here.home / ".ssh" / "conf.d").mkdir()
    (bed.here.home / ".ssh" / "id_ed25519").unlink()
    (bed.here.home / ".ssh" / "conf.d" / "gpu").write_text(
        f"Host gpu-*\n  Port 2222\n  IdentityFile {key.path}\n\nHost gpu-1\n  HostName n1\n"
    )
    bed.here.write_ssh_config("Include conf.d/*\nMatch all\nHost *\n  User root\n")
    bed.vdisagg("up", bed.topology([n1], nodes={"n1": {"ssh": "gpu-1", "data_ip": n1.address}}))
    bed.serves()


def test_d02_the_topology_wins_over_ssh_config(bed: Bed) -> None:
    n1 = bed.node("n1", port=2222)
    bed.here.write_ssh_config(
        "Host n1\n  HostName 198.18.0.99\n  Port 9\n\nHost *\n  User nobody\n"
    )
    ssh = {"host": n1.address, "port": 2222, "user": "root"}
    bed.vdisagg("up", bed.topology([n1], nodes={"n1": {"ssh": ssh}}))


def test_d04_a_wrong_user_is_called_one(bed: Bed) -> None:
    n1 = bed.node("n1")
    said = refused(bed, n1, nodes={"n1": {"ssh": {"user": "nosuchuser"}}})
    assert "n1" in said
    assert "nosuchuser" in said
    assert "encrypted" not in said


def test_d09_a_port_that_is_taken_on_a_node_is_named_with_its_owner(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    with n1.start(sys.executable, "-uc", LISTEN) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        up = bed.vdisagg("up", bed.topology([n1, n2]), check=False)
        pid = n1.run("pgrep", "-f", "create_server").stdout.split()[0]
        send(holder, signal.SIGKILL)
    assert up.returncode == 1
    said = up.stdout + up.stderr
    for part in ("n1", "198.18.0.11:21003", f"pid {pid}", "python"):
        assert part in said, said
    bed.nothing_is_left()


def test_d09_two_by_two_on_one_node_with_all_defaults(bed: Bed) -> None:
    (n1,) = bed.nodes(1)
    bed.vdisagg("up", bed.topology([n1], prefill={"count": 2}, decode={"count": 2}))
    bed.serves()
    bed.is_healthy()


def test_d10_an_address_that_is_not_the_nodes_is_found_before_anything_starts(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    said = refused(bed, n1, n2, nodes={"n2": {"data_ip": "198.18.7.7"}})
    assert "198.18.7.7" in said
    assert "n2" in said


def test_d12_different_versions_of_vllm_are_refused(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    said = refused(bed, n1, n2, nodes={"n2": {"env": {"STUB_VERSION": "0.31.0"}}})
    assert "0.31.0" in said


def test_d13_a_model_that_one_node_lacks_is_named_with_the_node(bed: Bed) -> None:
    """/dev/shm is each host's own."""
    n1, n2 = bed.nodes(2)
    for host in (bed.here, n1):
        host.run("cp", "-r", str(bed.model), "/dev/shm/model")
    said = refused(bed, n1, n2, model="/dev/shm/model")
    assert "/dev/shm/model" in said
    assert "n2" in said
    n2.run("cp", "-r", str(bed.model), "/dev/shm/model")
    n2.run("sh", "-c", "echo '{\"other\": 1}' >/dev/shm/model/config.json")
    assert "n2" in refused(bed, n1, n2, model="/dev/shm/model")
    n2.run("cp", str(bed.model / "config.json"), "/dev/shm/model/config.json")
    bed.vdisagg("up", bed.topology([n1, n2], model="/dev/shm/model"))


def test_all_faults_of_all_nodes_are_said_at_once(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    n3 = bed.node("n3")
    n1.sshds[0].stop()
    n2.sshds[0].stop()
    decode = {"instances": [{"node": "n2"}, {"node": "n3"}]}
    said = refused(bed, n1, n2, n3, decode=decode, nodes={"n3": {"vllm": "/no/such/vllm"}})
    for name in ("n1", "n2", "n3"):
        assert name in said
    assert "/no/such/vllm" in said
