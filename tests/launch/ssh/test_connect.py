"""The way to a node: jump hosts, proxies, busy servers, and what stands in the way by its name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from hosts.keys import make_key
from hosts.sshd import Sshd, free_port
from launch.ssh.conftest import Start
from vdisagg.errors import Failure, HostKeyRefused, Unreachable
from vdisagg.launch.ssh.connect import connect
from vdisagg.plan.model import Ssh


@pytest.fixture
def chain(start_sshd: Start, tmp_path: Path) -> dict[str, Sshd]:
    """Three servers; each lets in a key of its own only."""
    return {
        name: start_sshd(name, authorized=[make_key(tmp_path / f"key-{name}")])
        for name in ("outer", "inner", "node")
    }


def config(tmp_path: Path, servers: dict[str, Sshd], **more: str) -> Path:
    """One configuration for all of them; `more`: lines for one of them."""
    file = tmp_path / "config"
    file.write_text(
        "".join(
            server.ssh_config_lines(name) + f"  {more[name]}\n"
            if name in more
            else server.ssh_config_lines(name)
            for name, server in servers.items()
        )
    )
    return file


def says_where(config: Path) -> str:
    with connect("n1", Ssh("node"), config=config) as connection:
        return connection.run(("sh", "-c", "echo $SSH_CONNECTION"), limit_s=10).stdout.split()[3]


def test_several_jump_hosts_each_with_a_key_of_its_own(
    tmp_path: Path, chain: dict[str, Sshd]
) -> None:
    file = config(tmp_path, chain, node="ProxyJump outer,inner")
    assert says_where(file) == str(chain["node"].port)
    assert all("Accepted publickey" in server.said() for server in chain.values())


def test_a_jump_host_may_need_a_jump_host(tmp_path: Path, chain: dict[str, Sshd]) -> None:
    file = config(tmp_path, chain, node="ProxyJump inner", inner="ProxyJump outer")
    assert says_where(file) == str(chain["node"].port)
    assert all("Accepted publickey" in server.said() for server in chain.values())


def test_a_jump_host_s_key_is_checked_too(tmp_path: Path, chain: dict[str, Sshd]) -> None:
    file = config(tmp_path, chain, node="ProxyJump outer,inner")
    (chain["inner"].directory / "known_hosts").write_text("")
    name = rf"\[127\.0\.0\.1\]:{chain['inner'].port}"
    with pytest.raises(
        HostKeyRefused, match=rf"^n1: jump host inner: the host key of {name} is not"
    ):
        says_where(file)
    assert "Accepted" not in chain["inner"].said()


def test_a_node_that_its_jump_host_cannot_reach_is_named(
    tmp_path: Path, chain: dict[str, Sshd]
) -> None:
    file = config(tmp_path, chain, node="ProxyJump outer")
    chain["node"].stop()
    with pytest.raises(
        Unreachable, match=rf"^n1: .*jump host outer to 127.0.0.1:{chain['node'].port}"
    ):
        says_where(file)


def test_a_proxy_command_is_the_way(tmp_path: Path, chain: dict[str, Sshd]) -> None:
    file = tmp_path / "config"
    config(tmp_path, chain, node=f"ProxyCommand ssh -F {file} -W %h:%p outer")
    assert says_where(file) == str(chain["node"].port)
    assert "Accepted publickey" in chain["outer"].said()


def test_a_proxy_command_that_cannot_be_run_is_named(tmp_path: Path, sshd: Sshd) -> None:
    file = config(tmp_path, {"node": sshd}, node="ProxyCommand /no/such/proxy %h")
    with pytest.raises(
        Unreachable, match=r"ProxyCommand `/no/such/proxy 127\.0\.0\.1` cannot be run"
    ):
        says_where(file)


def test_what_a_proxy_command_complains_about_is_passed_on(tmp_path: Path, sshd: Sshd) -> None:
    file = config(tmp_path, {"node": sshd}, node="ProxyCommand sh -c 'echo no route to %h >&2'")
    with pytest.raises(Unreachable, match=r"its ProxyCommand says: no route to 127\.0\.0\.1"):
        connect("n1", Ssh("node"), config=file, limit_s=4)


def test_d15_many_logins_at_once_all_come_through(tmp_path: Path, start_sshd: Start) -> None:
    sshd = start_sshd(options=("MaxStartups 2:100:2",))
    file = config(tmp_path, {"node": sshd})
    with ThreadPoolExecutor(12) as threads:
        ports = threads.map(
            lambda _: connect("n1", Ssh("node"), config=file, limit_s=60).close(), range(24)
        )
        assert list(ports) == [None] * 24
    assert sshd.said().count("Accepted publickey") == 24


def test_nobody_listens_is_named(tmp_path: Path, sshd: Sshd) -> None:
    sshd.stop()
    with pytest.raises(
        Unreachable, match=rf"^n1: .*127.0.0.1:{sshd.port}: .*Connection refused; next: "
    ):
        says_where(config(tmp_path, {"node": sshd}))


def test_a_name_that_nobody_knows_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    with pytest.raises(Unreachable, match=r"^n1: the name no-host\.invalid cannot be resolved"):
        connect("n1", Ssh("no-host.invalid"), config=tmp_path / "config")


@contextmanager
def listener(greeting: bytes) -> Iterator[int]:
    """Takes connections, says this, and no more; the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = []

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                taken.append(client)
                client.sendall(greeting)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in taken:
                client.close()


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-nobody\r\n"])
def test_a_server_that_does_not_answer_is_given_up_in_time(tmp_path: Path, greeting: bytes) -> None:
    (tmp_path / "config").write_text("")
    with listener(greeting) as port, pytest.raises(Unreachable, match=r"^n1: .*; next: "):
        connect("n1", Ssh("127.0.0.1", port=port), config=tmp_path / "config", limit_s=1)


def test_a_server_that_speaks_something_else_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    http = b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200
    with listener(http) as port, pytest.raises(Unreachable, match=r"^n1: .*; next: "):
        connect("n1", Ssh("127.0.0.1", port=port), config=tmp_path / "config", limit_s=2)


def test_algorithms_that_the_configuration_excludes_are_not_used(
    tmp_path: Path, start_sshd: Start
) -> None:
    sshd = start_sshd(options=("LogLevel DEBUG1",))
    file = config(tmp_path, {"node": sshd}, node="Ciphers aes256-ctr")
    assert says_where(file)
    assert "cipher: aes256-ctr" in sshd.said()


def test_algorithms_that_we_do_not_have_are_named(tmp_path: Path, sshd: Sshd) -> None:
    file = config(tmp_path, {"node": sshd}, node="Ciphers chacha20-poly1305@openssh.com")
    with pytest.raises(Unreachable, match=r"^n1: ssh_config allows only such Ciphers .*chacha20"):
        says_where(file)


def test_an_ipv6_literal_is_dialled(start_sshd: Start, tmp_path: Path) -> None:
    sshd = start_sshd(addresses=("::1",))
    assert says_where(config(tmp_path, {"node": sshd})) == str(sshd.port)


def test_the_address_to_dial_from_is_honoured(tmp_path: Path, sshd: Sshd) -> None:
    file = config(tmp_path, {"node": sshd}, node="BindAddress 127.0.0.9")
    with connect("n1", Ssh("node"), config=file) as connection:
        source = connection.run(("sh", "-c", "echo $SSH_CONNECTION"), limit_s=10).stdout.split()[0]
    assert source == "127.0.0.9"


def test_every_failure_leaves_no_thread_behind(tmp_path: Path, chain: dict[str, Sshd]) -> None:
    file = config(tmp_path, chain, node="ProxyJump outer")
    chain["node"].stop()
    before = set(threading.enumerate())
    with pytest.raises(Failure):
        says_where(file)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert set(threading.enumerate()) <= before
    assert free_port()
