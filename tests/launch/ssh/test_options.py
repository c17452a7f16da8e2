"""Options are those that OpenSSH itself would use, and what is not supported is named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vdisagg.errors import SshOptionRefused
from vdisagg.launch.ssh import directives
from vdisagg.launch.ssh.options import Options, resolve, route
from vdisagg.launch.ssh.settings import home, settings
from vdisagg.plan.model import Ssh

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is missing")

MAIN = """
Include {include}/*
Host gpu?
  HostName %h.cluster.example
  ProxyJump al@bastion:2200,inner
  IdentityFile ~/keys/%r@%n
Match originalhost gpu2 user root
  Port 2022
Match host *.cluster.example
  UserKnownHostsFile ~/.ssh/known_cluster ~/.ssh/known_more
  HostKeyAlias the-cluster
  ServerAliveInterval 9
  StrictHostKeyChecking accept-new
Match all
  ConnectTimeout 1m
Host *
  User ops
  Port 22
"""
INCLUDED = """
Host gpu2
  User root
  IdentitiesOnly yes
  IdentityAgent ~/agent-%n
Host inner
  HostName 198.18.7.7
  Port 2222
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "cluster").write_text(INCLUDED)
    file = tmp_path / "config"
    file.write_text(MAIN.format(include=tmp_path / "conf.d"))
    return file


def printed(config: Path, alias: str) -> dict[str, list[str]]:
    """What `ssh -G` prints, read without our code."""
    words = ["ssh", "-T", "-G", "-F", str(config), alias]
    found: dict[str, list[str]] = {}
    for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    ):
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword, []).append(value)
    return found


def as_printed(options: Options) -> dict[str, list[str]]:
    """Ours in the same form."""
    jumps = (
        f"{f'{j.user}@' if j.user else ''}{j.host}{f':{j.port}' if j.port else ''}"
        for j in options.proxy_jump
    )
    timeout = options.connect_timeout_s
    return {
        "hostname": [options.hostname],
        "user": [options.user],
        "port": [str(options.port)],
        "identitiesonly": ["yes" if options.identities_only else "no"],
        "userknownhostsfile": [" ".join(options.user_known_hosts)],
        "globalknownhostsfile": [" ".join(options.global_known_hosts)],
        "connecttimeout": [f"{timeout:.0f}" if timeout else "none"],
        **({"hostkeyalias": [options.host_key_alias]} if options.host_key_alias else {}),
        **({"proxyjump": [",".join(jumps)]} if options.proxy_jump else {}),
        **({"identityagent": [options.agent]} if options.agent else {}),
    }


@needs_ssh
@pytest.mark.parametrize("alias", ["gpu1", "gpu2", "inner", "elsewhere"])
def test_d02_values_are_those_that_ssh_prints(
    config: Path, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    ours = as_printed(resolve("n1", Ssh(alias), config))
    theirs = printed(config, alias)
    absent = [key for key in ("hostkeyalias", "proxyjump", "identityagent") if key not in ours]
    assert ours == {key: theirs[key] for key in ours}
    assert not any(key in theirs for key in absent)


@needs_ssh
def test_d02_include_match_and_patterns_all_count(config: Path) -> None:
    options = resolve("n1", Ssh("gpu2"), config)
    assert (options.hostname, options.user, options.port) == ("gpu2.cluster.example", "root", 2022)
    assert options.identity_files == (f"{home()}/keys/root@gpu2",)
    assert options.identities_named
    assert options.identities_only
    assert options.agent == f"{home()}/agent-gpu2"
    assert options.keepalive_s == 9
    assert options.strict_host_key_checking == "accept-new"
    assert options.host_key_name == "the-cluster"


@needs_ssh
def test_d02_the_topology_wins(config: Path) -> None:
    ssh = Ssh("gpu2", user="eve", port=99, identity_file="~/other")
    options = resolve("n1", ssh, config)
    assert (options.user, options.port) == ("eve", 99)
    assert options.identity_files == (f"{home()}/other",)
    assert options.identities_named


@needs_ssh
def test_every_jump_host_is_resolved_by_its_own_alias(config: Path) -> None:
    hops = route("n1", Ssh("gpu1"), config)
    assert [(hop.user, str(hop)) for hop in hops] == [
        ("al", "bastion:2200"),
        ("ops", "198.18.7.7:2222"),
        ("ops", "gpu1.cluster.example:22"),
    ]


@needs_ssh
def test_a_jump_host_behind_another_is_reached_by_way_of_it(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host b\n ProxyJump a\nHost c\n ProxyJump b\nHost d\n ProxyJump x,b\n")
    assert [h.alias for h in route("n1", Ssh("c"), config)] == ["a", "b", "c"]
    assert [h.alias for h in route("n1", Ssh("d"), config)] == ["x", "b", "d"]


@needs_ssh
def test_jump_hosts_in_a_circle_are_named(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    with pytest.raises(SshOptionRefused, match=r"^n1: .*circle: a by way of b by way of a; .*!a"):
        route("n1", Ssh("a"), config)


@needs_ssh
def test_a_jump_host_that_jumps_through_itself_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n ProxyJump bastion\n")
    with pytest.raises(SshOptionRefused, match=r"^n1: .* loop via bastion"):
        route("n1", Ssh("gpu1"), config)


@needs_ssh
def test_a_proxy_command_has_its_tokens_expanded(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host gpu1\n HostName a.b\n Port 7\n User u\n ProxyCommand nc -X %h %p %r %n %%\n"
    )
    assert resolve("n1", Ssh("gpu1"), config).proxy_command == "nc -X a.b 7 u gpu1 %"


@needs_ssh
@pytest.mark.parametrize(
    "directive",
    [
        "BindInterface eth9",
        "CheckHostIP yes",
        "CertificateFile ~/cert",
        "KnownHostsCommand /bin/echo x",
        "PKCS11Provider /usr/lib/token.so",
        "PreferredAuthentications password,keyboard-interactive",
        "ProxyUseFdpass yes",
        "PubkeyAuthentication no",
        "RevokedHostKeys ~/revoked",
        "VerifyHostKeyDNS yes",
    ],
)
def test_d02_what_is_not_supported_is_named(tmp_path: Path, directive: str) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host gpu1\n {directive}\n")
    with pytest.raises(SshOptionRefused) as refused:
        route("n1", Ssh("gpu1"), config)
    assert f"n1: ssh_config sets `{directive.split()[0]} " in str(refused.value)
    assert "; next: " in str(refused.value)


@needs_ssh
def test_every_directive_that_openssh_has_by_default_is_known(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    said = settings("n1", Ssh("gpu1"), tmp_path / "config")
    new = [keyword for keyword in said if not directives.is_known(keyword)]
    assert new == [], "decide what becomes of them"


def test_a_directive_that_is_newer_than_we_are_is_named_where_it_is_set() -> None:
    said = {"user": ["u"], "wormhole": ["yes"], "quantum": ["a", "b"]}
    with pytest.raises(SshOptionRefused) as refused:
        directives.refuse("n1", "gpu1", said, lambda: {"wormhole": ["no"], "quantum": ["a", "b"]})
    assert str(refused.value) == (
        "n1: ssh_config sets `wormhole yes` for gpu1, which is not supported; next: take it out for "
        "this host"
    )


def test_a_directive_that_is_not_supported_may_be_a_default() -> None:
    """CheckHostIP was, before OpenSSH 8.5."""
    directives.refuse("n1", "gpu1", {"checkhostip": ["yes"]}, lambda: {"checkhostip": ["yes"]})


@needs_ssh
def test_what_keys_may_be_used_is_read(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host gpu1\n PubkeyAcceptedKeyTypes rsa-sha2-512,ssh-ed25519\n RequiredRSASize 3000\n"
        ' SetEnv A="b c" D=e=f\n'
    )
    options = resolve("n1", Ssh("gpu1"), config)
    assert options.key_algorithms == ("rsa-sha2-512", "ssh-ed25519")
    assert options.required_rsa_bits == 3000
    assert options.environment == (("A", "b c"), ("D", "e=f"))


@needs_ssh
def test_what_is_not_supported_is_named_for_a_jump_host_too(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host gpu1\n ProxyJump j\nHost j\n PKCS11Provider /x.so\n")
    with pytest.raises(SshOptionRefused, match=r"`PKCS11Provider /x\.so` for j"):
        route("n1", Ssh("gpu1"), config)


@needs_ssh
def test_what_only_adds_something_is_left_out(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host *\n ControlMaster auto\n ControlPath ~/.ssh/cm-%C\n ForwardAgent yes\n Compression yes\n"
        " GSSAPIAuthentication yes\n HostbasedAuthentication yes\n LocalForward 1 localhost:2\n"
        " RemoteCommand tmux\n SendEnv LANG\n PreferredAuthentications hostbased,publickey\n"
        " VerifyHostKeyDNS ask\n NoHostAuthenticationForLocalhost yes\n RekeyLimit 1G 1h\n"
        " IgnoreUnknown Wormhole\n Wormhole yes\n"
    )
    assert resolve("n1", Ssh("gpu1"), config).hostname == "gpu1"


@needs_ssh
def test_a_file_that_openssh_does_not_take_is_an_error(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host gpu1\n Prot 22\n")
    with pytest.raises(SshOptionRefused, match=r"^n1: .*line 2: Bad configuration option: prot"):
        route("n1", Ssh("gpu1"), config)


@needs_ssh
def test_a_host_that_looks_like_a_flag_is_no_flag(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("")
    mark = tmp_path / "mark"
    with pytest.raises(SshOptionRefused):
        route("n1", Ssh(f"-oProxyCommand=touch {mark}"), config)
    assert not mark.exists()


def test_options_that_nobody_set_are_openssh_s_own(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("")
    options = resolve("n1", Ssh("gpu1"), config)
    assert not options.identities_named
    assert f"{home()}/.ssh/id_ed25519" in options.identity_files
    assert options.user_known_hosts[0] == f"{home()}/.ssh/known_hosts"
    assert (options.port, options.strict_host_key_checking) == (22, "yes")
    assert (options.keepalive_s, options.keepalive_count) == (5, 3)
    assert options.keepalive_s * (options.keepalive_count + 1) == 20, "README and docs/faults.md"


@pytest.fixture
def without_openssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("without_openssh")
def test_without_openssh_the_plain_parts_are_honoured_all_the_same(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host gpu?\n HostName %h.example\n Port 2222\n User ops\n IdentityFile ~/k\n ProxyJump u@j:5\n"
    )
    ssh = Ssh("gpu1", user="eve")
    options = resolve("n1", ssh, config)
    assert (options.hostname, options.port, options.user) == ("gpu1.example", 2222, "eve")
    assert options.identity_files == (f"{home()}/k",)
    assert options.proxy_jump == (Ssh("j", "u", 5),)


@pytest.mark.usefixtures("without_openssh")
@pytest.mark.parametrize(
    "line",
    [
        "Include conf.d/*",
        "include\tconf.d/*",
        "Match tagged x",
        "match !localnetwork 1.2.3.0/24",
        "SetEnv A=b C=d",
        "Ciphers ^aes256-ctr",
        "PubkeyAcceptedKeyTypes=+ssh-rsa",
        "HostKeyAlgorithms ssh-*",
    ],
)
def test_without_openssh_what_only_it_understands_is_named(tmp_path: Path, line: str) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host x\n Port 1\n{line}\n Port 3\n")
    with pytest.raises(SshOptionRefused, match=r"config:3: .*next: install"):
        resolve("n1", Ssh("gpu1"), config)


@pytest.mark.usefixtures("without_openssh")
def test_without_openssh_a_match_that_paramiko_knows_is_honoured(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Match originalhost gpu1 user tagged\n Port 3\nMatch all\n User a\n")
    assert resolve("n1", Ssh("gpu1", user="tagged"), config).port == 3


@pytest.mark.usefixtures("without_openssh")
def test_without_openssh_what_is_not_supported_or_not_known_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Protocol 2\nMACs hmac-sha2-256\nPubkeyAcceptedKeyTypes ssh-ed25519\nVerifyHostKeyDNS yes\n"
        "Wormhole 1\n"
    )
    with pytest.raises(SshOptionRefused) as refused:
        resolve("n1", Ssh("gpu1"), config)
    first, second = str(refused.value).splitlines()
    assert first.startswith("n1: ssh_config sets `VerifyHostKeyDNS yes` for gpu1, ")
    assert second.startswith("n1: ssh_config sets `wormhole 1` for gpu1, ")


@pytest.mark.usefixtures("without_openssh")
@pytest.mark.parametrize("line", ["Port ssh", "RequiredRSASize big", "ServerAliveCountMax -1"])
def test_without_openssh_what_has_to_be_a_number_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "config").write_text(f"Host gpu1\n {line}\n")
    with pytest.raises(
        SshOptionRefused, match=rf"(?i)^n1: .*`{line}` for gpu1, which is no number"
    ):
        resolve("n1", Ssh("gpu1"), tmp_path / "config")
