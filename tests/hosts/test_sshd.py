"""The sshd and the agent that other tests stand on."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from subprocess import DEVNULL

import pytest

from hosts import sshd as module
from hosts.keys import Agent, make_key
from hosts.processes import identity
from hosts.sshd import Sshd

pytestmark = pytest.mark.skipif(bool(module.missing()), reason=module.missing())
as_root = pytest.mark.skipif(os.getuid() != 0, reason="another home directory takes root")


def ssh(sshd: Sshd, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = ["ssh", "-F", str(sshd.ssh_config("node")), "-o", "BatchMode=yes", *options]
    return subprocess.run(
        [*words, "node", command], capture_output=True, text=True, timeout=30, stdin=DEVNULL
    )


def test_a_client_with_its_key_is_let_in_and_no_other(tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd") as sshd:
        done = ssh(sshd, "echo $SSH_CONNECTION")
        assert done.stdout.split()[2:] == ["127.0.0.1", str(sshd.port)], done.stderr
        make_key(tmp_path / "other")
        assert sshd.client_key is not None
        sshd.client_key.path.write_text((tmp_path / "other").read_text())
        assert "Permission denied" in ssh(sshd, "true").stderr
        assert "Accepted publickey" in sshd.said()


def test_its_host_keys_are_known_by_the_port_too(tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd", host_key_kinds=("ed25519", "ecdsa")) as sshd:
        lines = sshd.known_hosts().splitlines()
        assert [line.split()[:2] for line in lines] == [
            [f"[127.0.0.1]:{sshd.port}", "ssh-ed25519"],
            [f"[127.0.0.1]:{sshd.port}", "ecdsa-sha2-nistp256"],
        ]
        assert ssh(sshd, "true", "-o", "HostKeyAlgorithms=ecdsa-sha2-nistp256").returncode == 0


def test_options_win(tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd", options=["PermitRootLogin no", "DenyUsers *"]) as sshd:
        assert ssh(sshd, "true").returncode == 255


def test_its_end_ends_what_its_clients_run(tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd") as sshd:
        config = sshd.ssh_config("node")
        words = ["ssh", "-F", str(config), "node", "echo $$; exec sleep 1000"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            remote = int(client.stdout.readline())
            assert identity(remote) is not None
            sshd.stop()
            assert client.wait(30) == 255
        assert identity(remote) is None
        sshd.start()
        assert ssh(sshd, "true").returncode == 0, "it starts again on the same port"


@as_root
def test_a_home_of_its_own_holds_for_logins_and_sftp_and_for_nobody_else(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Sshd(tmp_path / "sshd", home=home) as sshd:
        assert ssh(sshd, "echo ~; echo $HOME; pwd").stdout.split() == [str(home)] * 3
        words = ["sftp", "-q", "-b", "-", "-F", str(sshd.ssh_config("node")), "node"]
        done = subprocess.run(words, input="pwd\n", capture_output=True, text=True, timeout=30)
        assert str(home) in done.stdout, done.stderr
    assert pwd.getpwuid(os.getuid()).pw_dir != str(home)


def test_an_agent_holds_the_keys_that_it_was_given_in_their_order(tmp_path: Path) -> None:
    keys = [make_key(tmp_path / f"key{n}", passphrase="open" * (n % 2)) for n in range(3)]
    with Agent(keys) as agent:
        listed = subprocess.run(
            ["ssh-add", "-L"], env={**os.environ, **agent.environment}, capture_output=True
        )
        assert listed.stdout.decode().splitlines() == [key.public for key in keys]
    assert not agent.socket.exists()
