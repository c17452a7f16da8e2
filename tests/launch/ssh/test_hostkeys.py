"""Host keys are checked under the right name, and a refusal says what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hosts.keys import Key, make_key
from hosts.sshd import Sshd
from launch.ssh.conftest import Start
from vdisagg.errors import HostKeyRefused
from vdisagg.launch.ssh.connect import connect
from vdisagg.launch.ssh.hostkeys import Entry, HostKey, Known, fingerprint, line_for, parse
from vdisagg.plan.model import Ssh

CONFIG = """
Host node
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {key}
  IdentitiesOnly yes
  GlobalKnownHostsFile none
  UserKnownHostsFile {known}
"""


def config(sshd: Sshd, known: str, more: str = "") -> Path:
    """A configuration with these lines in its known_hosts file."""
    assert sshd.client_key is not None
    (sshd.directory / "known").write_text(known)
    file = sshd.directory / "config"
    file.write_text(
        CONFIG.format(
            port=sshd.port,
            user=sshd.user,
            key=sshd.client_key.path,
            known=sshd.directory / "known",
        )
        + more
    )
    return file


def reaches(config: Path) -> bool:
    with connect("n1", Ssh("node"), config=config) as connection:
        return connection.run(("echo", "here"), limit_s=10).stdout == "here\n"


def refusal(config: Path) -> str:
    with pytest.raises(HostKeyRefused) as refused:
        connect("n1", Ssh("node"), config=config)
    return str(refused.value)


def other_key(sshd: Sshd, kind: str = "ed25519") -> Key:
    return make_key(sshd.directory / f"other_{kind}", kind)


def line(name: str, key: Key) -> str:
    return f"{name} {' '.join(key.public.split()[:2])}\n"


def name(sshd: Sshd) -> str:
    return f"[127.0.0.1]:{sshd.port}"


def test_d01_the_name_with_the_port_counts_not_another_key_of_the_plain_name(sshd: Sshd) -> None:
    known = line("127.0.0.1", other_key(sshd)) + sshd.known_hosts()
    assert reaches(config(sshd, known))


def test_d01_a_changed_key_is_refused_with_host_port_file_and_line(sshd: Sshd) -> None:
    other = other_key(sshd)
    said = refusal(config(sshd, "# mine\n" + line(name(sshd), other)))
    assert said.startswith(f"n1: the host key of 127.0.0.1 port {sshd.port} has changed")
    assert f"{sshd.directory / 'known'}:2 " in said
    assert fingerprint(parse("", line("x", other))[0].key) in said
    assert f"ssh-keygen -R '{name(sshd)}' -f {sshd.directory / 'known'}" in said


def test_d01_an_unknown_key_is_refused_with_the_command_that_fixes_it(sshd: Sshd) -> None:
    file = config(sshd, line("127.0.0.1", other_key(sshd)))
    said = refusal(file)
    listed = subprocess.run(
        ["ssh-keygen", "-lf", sshd.host_keys[0].path], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split()[1] in said
    assert "compare the fingerprint" in said
    fix = said.rpartition("then: ")[2]
    assert fix.startswith(f"ssh-keyscan -t ed25519 -p {sshd.port} 127.0.0.1 >> ")
    subprocess.run(["sh", "-c", fix], check=True, capture_output=True)
    assert reaches(file)


def test_d01_hashed_names_are_found(sshd: Sshd) -> None:
    file = config(sshd, line(f"[127.0.0.2]:{sshd.port}", other_key(sshd)) + sshd.known_hosts())
    known = sshd.directory / "known"
    subprocess.run(["ssh-keygen", "-q", "-Hf", known], check=True, capture_output=True)
    assert "127.0.0.1" not in known.read_text()
    assert reaches(file)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_d01_a_host_with_several_keys_is_asked_for_the_kind_that_is_known(
    start_sshd: Start, kind: str
) -> None:
    sshd = start_sshd(host_key_kinds=("ed25519", "rsa", "ecdsa"))
    (known,) = (key for key in sshd.host_keys if key.path.name == f"host_{kind}")
    assert reaches(config(sshd, line(name(sshd), known)))


def test_a_host_known_by_another_kind_of_key_only_has_changed(sshd: Sshd) -> None:
    said = refusal(config(sshd, line(name(sshd), other_key(sshd, "rsa"))))
    assert "has changed" in said
    assert "ssh-rsa SHA256:" in said


def test_the_same_key_under_the_plain_name_will_do(sshd: Sshd) -> None:
    assert reaches(config(sshd, line("127.0.0.1", sshd.host_keys[0])))


def test_a_known_key_that_is_too_short_for_ssh_config_is_refused(start_sshd: Start) -> None:
    sshd = start_sshd(host_key_kinds=("rsa",))  # of 3072 bits
    known = sshd.known_hosts()
    with connect("n1", Ssh("node"), config=config(sshd, known, "  RequiredRSASize 3072\n")):
        pass
    with pytest.raises(HostKeyRefused, match=r"has 3072 bits, RequiredRSASize .* is 3073; next: "):
        connect("n1", Ssh("node"), config=config(sshd, known, "  RequiredRSASize 3073\n"))


def test_a_revoked_key_is_refused(sshd: Sshd) -> None:
    said = refusal(config(sshd, sshd.known_hosts() + line("@revoked *", sshd.host_keys[0])))
    assert f"is revoked in {sshd.directory / 'known'}:2" in said


def test_a_host_known_by_an_authority_only_is_named_as_not_supported(sshd: Sshd) -> None:
    file = config(sshd, line("@cert-authority *", other_key(sshd)))
    said = refusal(file)
    assert f"@cert-authority in {sshd.directory / 'known'}:1" in said
    assert "not supported" in said


def test_an_alias_is_the_name_that_counts(sshd: Sshd) -> None:
    alias = "  HostKeyAlias the-node\n"
    assert reaches(config(sshd, line("the-node", sshd.host_keys[0]), alias))
    file = config(sshd, "", alias)
    said = refusal(file)
    assert "the host key of the-node is not known" in said
    subprocess.run(["sh", "-c", said.rpartition("then: ")[2]], check=True)
    assert reaches(file)


@pytest.mark.parametrize("choice", ["accept-new", "no"])
@pytest.mark.parametrize("hashed", ["yes", "no"])
def test_an_unknown_key_is_written_down_where_the_user_chose_so(
    sshd: Sshd, choice: str, hashed: str
) -> None:
    more = f"  StrictHostKeyChecking {choice}\n  HashKnownHosts {hashed}\n"
    file = config(sshd, "# no newline at the end", more)
    assert reaches(file)
    known = (sshd.directory / "known").read_text()
    assert ("127.0.0.1" in known) == (hashed == "no")
    file.write_text(file.read_text().replace(f"StrictHostKeyChecking {choice}", ""))
    assert reaches(file)


@pytest.mark.parametrize("choice", ["accept-new", "no"])
def test_a_changed_key_is_refused_whatever_was_chosen(sshd: Sshd, choice: str) -> None:
    more = f"  StrictHostKeyChecking {choice}\n"
    assert "has changed" in refusal(config(sshd, line(name(sshd), other_key(sshd)), more))


def entry(hosts: str, *, kind: str = "ssh-ed25519", key: bytes = b"k", marker: str = "") -> Entry:
    return Entry("known", 1, marker, hosts, kind, key)


@pytest.mark.parametrize(
    ("hosts", "name", "matches"),
    [
        ("a.b", "a.b", True),
        ("A.b", "a.B", True),
        ("x,a.b", "a.b", True),
        ("*.b", "a.b", True),
        ("?.b", "aa.b", False),
        ("*.b,!a.b", "a.b", False),
        ("!a.b,*", "c", True),
        ("[a]:22", "a", False),
        ("[a]:2222", "[a]:2222", True),
        ("[a]:*", "[a]:2222", True),
        ("[ab]", "a", False),
        ("|1|garbage", "a", False),
    ],
)
def test_names_match_as_openssh_matches_them(hosts: str, name: str, matches: bool) -> None:
    assert entry(hosts).is_for(name) is matches


def test_a_hashed_line_is_for_its_name_alone() -> None:
    hashed = line_for("[h]:2222", HostKey("ssh-ed25519", b"k"), salt=b"s" * 20)
    (found,) = parse("f", hashed)
    assert found.is_for("[h]:2222")
    assert not found.is_for("h")


def test_lines_that_make_no_sense_are_passed_over_and_counted() -> None:
    found = parse(
        "f", "\n# a\nx\nh ssh-ed25519 !!!\nh ssh-ed25519 aw==\n@revoked h ssh-rsa aw== c\n"
    )
    assert [(e.line, e.marker) for e in found] == [(5, ""), (6, "@revoked")]


def test_known_kinds_come_first_and_nothing_is_lost() -> None:
    known = Known("h", (entry("h", kind="ssh-rsa"), entry("h", kind="e", marker="@revoked")))
    order = known.order(("ssh-ed25519", "rsa-sha2-512", "e", "rsa-sha2-256"))
    assert order == ("rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519", "e")
