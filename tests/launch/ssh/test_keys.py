"""Logging in: the right key first, and each failure by its own name."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.keys import Agent, Key, make_key
from hosts.sshd import Sshd
from launch.ssh.conftest import Start
from vdisagg.errors import AuthenticationFailed
from vdisagg.launch.ssh.connect import connect
from vdisagg.launch.ssh.keys import read_file
from vdisagg.plan.model import Ssh

NODE = Ssh("node")


@pytest.fixture
def keys(tmp_path: Path) -> list[Key]:
    """Seven; the server lets in the last one, which is locked."""
    wrong = [make_key(tmp_path / f"wrong{n}") for n in range(6)]
    return [*wrong, make_key(tmp_path / "right", passphrase="secret")]


@pytest.fixture
def agent(keys: list[Key], monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Holds all of them, the right one last."""
    with Agent(keys) as made:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(made.socket))
        yield made


@pytest.fixture
def host(start_sshd: Start, keys: list[Key]) -> Sshd:
    return start_sshd(authorized=keys[-1:])


def config(sshd: Sshd, *lines: str) -> Path:
    file = sshd.directory / "config"
    file.write_text(
        f"Host node\n HostName 127.0.0.1\n Port {sshd.port}\n User {sshd.user}\n"
        f" UserKnownHostsFile {sshd.known_hosts_file()}\n" + "".join(f" {line}\n" for line in lines)
    )
    return file


def attempts(sshd: Sshd) -> int:
    """How many keys were tried at it, the accepted one included."""
    return sum(
        line.startswith(("Failed publickey", "Accepted publickey"))
        for line in sshd.said().splitlines()
    )


def logs_in(config: Path, ssh: Ssh = NODE) -> bool:
    with connect("n1", ssh, config=config) as connection:
        return connection.run(("true",), limit_s=10).code == 0


def failure(config: Path, ssh: Ssh = NODE) -> str:
    with pytest.raises(AuthenticationFailed) as failed:
        connect("n1", ssh, config=config)
    return str(failed.value)


@pytest.mark.usefixtures("agent")
def test_d04_the_agent_s_last_key_logs_in_with_one_attempt(host: Sshd, keys: list[Key]) -> None:
    lines = (f"IdentityFile {keys[-1].path}", "IdentitiesOnly yes")
    assert logs_in(config(host, *lines))
    assert attempts(host) == 1


@pytest.mark.usefixtures("agent")
def test_d04_a_file_that_the_topology_names_comes_first(host: Sshd, keys: list[Key]) -> None:
    assert logs_in(config(host), Ssh("node", identity_file=str(keys[-1].path)))
    assert attempts(host) == 1


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("left", ["right.pub", "right"])
def test_d04_either_half_of_a_locked_key_names_the_agent_s(
    host: Sshd, keys: list[Key], left: str
) -> None:
    path = keys[-1].path
    for file in (path, path.with_name("right.pub")):
        if file.name != left:
            file.unlink()
    assert logs_in(config(host, f"IdentityFile {path}", "IdentitiesOnly yes"))
    assert attempts(host) == 1


@pytest.mark.usefixtures("agent")
def test_an_identity_file_may_be_the_public_half_itself(host: Sshd, keys: list[Key]) -> None:
    keys[-1].path.unlink()
    lines = (f"IdentityFile {keys[-1].path}.pub", "IdentitiesOnly yes")
    assert logs_in(config(host, *lines))
    assert attempts(host) == 1


@pytest.mark.usefixtures("agent")
def test_d04_too_many_attempts_are_named_with_the_remedy(host: Sshd) -> None:
    said = failure(config(host, "IdentityFile none"))
    assert "after too many attempts" in said
    assert "wrong0 (agent)" in said
    assert "`IdentitiesOnly yes`" in said


def test_a_file_that_is_named_goes_before_the_agent_s_other_keys(
    start_sshd: Start, keys: list[Key], agent: Agent
) -> None:
    sshd = start_sshd()
    assert sshd.client_key is not None
    assert logs_in(config(sshd, f"IdentityFile {sshd.client_key.path}"))
    assert attempts(sshd) == 1


@pytest.mark.usefixtures("agent")
def test_d04_a_wrong_user_is_named_and_so_are_the_keys(host: Sshd, keys: list[Key]) -> None:
    lines = (f"IdentityFile {keys[-1].path}", "IdentitiesOnly yes")
    said = failure(config(host, *lines), Ssh("node", user="nobody-here"))
    assert f"127.0.0.1:{host.port} did not let in user nobody-here" in said
    assert f"{keys[-1].path} (agent)" in said
    assert "locked" not in said
    assert f"`ssh-copy-id -p {host.port} nobody-here@127.0.0.1`" in said


def test_d04_a_locked_key_without_agent_is_named_with_the_command(
    host: Sshd, keys: list[Key]
) -> None:
    said = failure(config(host, f"IdentityFile {keys[-1].path}"))
    assert f"the key {keys[-1].path} is locked with a passphrase" in said
    assert "there is no SSH agent (SSH_AUTH_SOCK is not set)" in said
    assert f"`ssh-add {keys[-1].path}`" in said


@pytest.mark.parametrize("form", ["RFC4716", "PEM"])
def test_a_locked_key_is_known_for_one_in_either_form(tmp_path: Path, form: str) -> None:
    words = ("ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "secret", "-m", form, "-f")
    subprocess.run([*words, tmp_path / "k"], check=True)
    (tmp_path / "k.pub").unlink()
    found = read_file(str(tmp_path / "k"))
    assert found is not None
    assert found.locked
    assert bool(found.publics) == (form == "RFC4716")


def test_d04_no_agent_and_no_key_is_named(host: Sshd, tmp_path: Path) -> None:
    said = failure(config(host, f"IdentityFile {tmp_path}/absent"))
    assert "no key to log in with: there is no SSH agent" in said
    assert f"{tmp_path}/absent" in said


def test_an_agent_that_is_gone_is_named(host: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nonexistent/agent")
    said = failure(config(host, "IdentityFile none"))
    assert "the SSH agent at /nonexistent/agent does not answer" in said


def test_the_agent_of_identity_agent_is_asked(host: Sshd, keys: list[Key]) -> None:
    with Agent(keys[-1:]) as other:
        assert logs_in(config(host, "IdentityFile none", f"IdentityAgent {other.socket}"))


def test_a_server_that_takes_no_keys_is_named(start_sshd: Start) -> None:
    sshd = start_sshd(
        options=("AuthenticationMethods password", "PubkeyAuthentication no", "UsePAM no")
    )
    assert sshd.client_key is not None
    said = failure(config(sshd, f"IdentityFile {sshd.client_key.path}"))
    assert f"takes no keys from {sshd.user}, only password" in said


def test_two_keys_that_are_wanted_together_log_in(start_sshd: Start, tmp_path: Path) -> None:
    both = [make_key(tmp_path / "one"), make_key(tmp_path / "two")]
    sshd = start_sshd(authorized=both, options=("AuthenticationMethods publickey,publickey",))
    lines = [f"IdentityFile {key.path}" for key in both]
    assert logs_in(config(sshd, *lines))


def test_a_certificate_beside_the_key_is_used(start_sshd: Start, tmp_path: Path) -> None:
    authority, own = make_key(tmp_path / "authority"), make_key(tmp_path / "own")
    sign = ("ssh-keygen", "-q", "-s", authority.path, "-I", "me", "-n")
    (tmp_path / "ca").write_text(authority.public)
    sshd = start_sshd(authorized=(), options=(f"TrustedUserCAKeys {tmp_path / 'ca'}",))
    subprocess.run([*sign, sshd.user, f"{own.path}.pub"], check=True)
    assert logs_in(config(sshd, f"IdentityFile {own.path}"))


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_every_kind_of_key_logs_in(start_sshd: Start, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / kind, kind)
    sshd = start_sshd(authorized=(key,))
    assert logs_in(config(sshd, f"IdentityFile {key.path}"))


@pytest.mark.usefixtures("agent")
def test_a_key_whose_algorithm_is_not_accepted_is_not_tried_and_named(
    start_sshd: Start, tmp_path: Path
) -> None:
    """As OpenSSH, which does not log in either."""
    sshd, rsa = start_sshd(), make_key(tmp_path / "rsa", "rsa")
    assert sshd.client_key is not None
    ed25519 = f"IdentityFile {sshd.client_key.path}"
    only = "PubkeyAcceptedAlgorithms rsa-sha2-512"
    words = ["ssh", "-F", str(config(sshd, ed25519, only)), "-o", "BatchMode yes", "node", "true"]
    assert subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 255
    said = failure(config(sshd, ed25519, only))
    assert "no key to log in with; " in said
    assert (
        f"{sshd.client_key.path} was not tried: PubkeyAcceptedAlgorithms of ssh_config does not have "
        "ssh-ed25519; "
    ) in said
    assert "wrong0 (agent) was not tried" in said
    assert attempts(sshd) == 0
    sshd.authorize(rsa)
    assert logs_in(config(sshd, ed25519, f"IdentityFile {rsa.path}", only))
    assert attempts(sshd) == 1


@pytest.mark.parametrize("algorithm", ["rsa-sha2-256", "rsa-sha2-512"])
@pytest.mark.parametrize("certified", [False, True])
def test_an_rsa_key_signs_as_is_accepted(
    start_sshd: Start, tmp_path: Path, algorithm: str, certified: bool
) -> None:
    authority, own = make_key(tmp_path / "authority"), make_key(tmp_path / "own", "rsa")
    (tmp_path / "ca").write_text(authority.public)
    options = ("LogLevel DEBUG2", f"TrustedUserCAKeys {tmp_path / 'ca'}")
    sshd = start_sshd(authorized=() if certified else (own,), options=options)
    if certified:
        sign = ("ssh-keygen", "-q", "-s", authority.path, "-I", "me", "-n", sshd.user)
        subprocess.run([*sign, f"{own.path}.pub"], check=True)
        algorithm += "-cert-v01@openssh.com"
    lines = (f"IdentityFile {own.path}", f"PubkeyAcceptedAlgorithms {algorithm}")
    assert logs_in(config(sshd, *lines))
    assert f"authenticated 1 pkalg {algorithm}" in sshd.said()


def test_an_rsa_key_that_is_too_short_for_ssh_config_is_not_tried_and_named(
    start_sshd: Start, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "rsa", "rsa")  # of 3072 bits
    sshd = start_sshd(authorized=(key,))
    assert logs_in(config(sshd, f"IdentityFile {key.path}", "RequiredRSASize 3072"))
    said = failure(config(sshd, f"IdentityFile {key.path}", "RequiredRSASize 3073"))
    assert (
        f"{key.path} was not tried: it has 3072 bits, RequiredRSASize of ssh_config is 3073" in said
    )


@contextlib.contextmanager
def refusing_agent(path: Path, agent: Agent) -> Iterator[None]:
    """Lists what `agent` holds and signs nothing, as one does whose user says no."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, socket.socket(socket.AF_UNIX) as behind:
                    behind.connect(str(agent.socket))
                    while request := client.recv(65536):
                        if request[4] == 13:  # SSH_AGENTC_SIGN_REQUEST
                            client.sendall(b"\0\0\0\1\5")  # SSH_AGENT_FAILURE
                        else:
                            behind.sendall(request)
                            client.sendall(behind.recv(65536))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_key_that_the_agent_does_not_sign_with_is_left_out(
    start_sshd: Start, keys: list[Key], tmp_path: Path
) -> None:
    sshd = start_sshd()
    assert sshd.client_key is not None
    with Agent(keys[:2]) as real, refusing_agent(tmp_path / "no", real):
        lines = (f"IdentityAgent {tmp_path / 'no'}", f"IdentityFile {sshd.client_key.path}")
        named = config(sshd, *lines)
        assert logs_in(named)
        said = failure(config(sshd, lines[0], "IdentityFile none"))
    assert "the SSH agent did not sign with any of its keys" in said


def test_d04_nothing_is_ever_asked(host: Sshd, keys: list[Key], tmp_path: Path) -> None:
    """Neither a terminal nor an askpass program is touched."""
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    ask.chmod(0o700)
    code = (
        "from pathlib import Path; from vdisagg.launch.ssh.connect import connect;"
        "from vdisagg.plan.model import Ssh\n"
        f"try: connect('n1', Ssh('node'), config=Path({str(config(host, f'IdentityFile {keys[-1].path}'))!r}))\n"
        "except Exception as e: print(type(e).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": "x"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert (done.stdout, done.stderr) == ("AuthenticationFailed\n", "")
    assert not (tmp_path / "asked").exists()
