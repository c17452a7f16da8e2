"""What the user's ssh_config says about a host: asked of OpenSSH itself, where it is installed."""

from __future__ import annotations

import io
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko

from vdisagg.errors import SshOptionRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vdisagg.plan.model import Ssh

Settings = dict[str, list[str]]
"""Keyword in lower case → its values in order, as `ssh -G` prints them."""

ASK_LIMIT_S = 20.0  # `Match exec` may run anything, and CanonicalizeHostname asks the resolver
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
DEFAULT_IDENTITIES = tuple(
    f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk")
)
"""ssh_config(5), IdentityFile. Some versions of OpenSSH add xmss and dsa."""
_RENAMED = {
    "challengeresponseauthentication": "kbdinteractiveauthentication",
    "dsaauthentication": "pubkeyauthentication",
    "hostbasedacceptedkeytypes": "hostbasedacceptedalgorithms",
    "hostbasedkeytypes": "hostbasedacceptedalgorithms",
    "identityfile2": "identityfile",
    "keepalive": "tcpkeepalive",
    "pubkeyacceptedkeytypes": "pubkeyacceptedalgorithms",
    "skeyauthentication": "kbdinteractiveauthentication",
    "tisauthentication": "kbdinteractiveauthentication",
}
"""Former names of directives: OpenSSH still takes them, and its older versions print some."""
_LISTS = frozenset(
    ("ciphers", "hostkeyalgorithms", "kexalgorithms", "macs", "pubkeyacceptedalgorithms")
)
"""Directives that may say what to add to, or to take from, the defaults, which OpenSSH alone knows."""
_NUMBERS = frozenset(("port", "requiredrsasize", "serveralivecountmax"))
_CRITERIA = frozenset(
    ("all", "canonical", "exec", "final", "host", "localuser", "originalhost", "user")
)
"""What paramiko knows of `Match`; it takes any other criterion for met."""


def home() -> str:
    """The home directory, as OpenSSH finds it: in the user database, whatever $HOME says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return str(Path.home())


def local_user() -> str:
    """The name of the user that we run as; a number where the user database has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def settings(where: str, ssh: Ssh, config: Path | None = None) -> Settings:
    """All settings for a destination; its own user and port win over those of the file.

    `config` stands in for the user's and the system's file, as with `ssh -F`. Raises
    SshOptionRefused (its text begins with `where`) for a file that cannot be read or understood.
    """
    program = shutil.which("ssh")
    if program is None:
        return _ask_paramiko(where, ssh, config)
    return parse(_ask_openssh(where, program, ssh, config))


def unset(where: str, ssh: Ssh) -> Settings:
    """OpenSSH's settings for a destination where no file says anything; none where it is not installed."""
    program = shutil.which("ssh")
    return parse(_ask_openssh(where, program, ssh, Path(os.devnull))) if program is not None else {}


def parse(printed: str) -> Settings:
    """Read what `ssh -G` prints: a keyword and a value per line."""
    found: Settings = {}
    for line in printed.splitlines():
        keyword, _, value = line.partition(" ")
        if keyword:
            found.setdefault(_present_name(keyword), []).append(value.strip())
    return found


def _present_name(keyword: str) -> str:
    return _RENAMED.get(keyword.lower(), keyword.lower())


def words(program: str, ssh: Ssh, config: Path | None) -> list[str]:
    """The command line that asks OpenSSH about a destination."""
    line = [program, "-T", "-G"]
    if config is not None:
        line += ["-F", str(config)]
    if ssh.user is not None:
        line += ["-l", ssh.user]
    if ssh.port is not None:
        line += ["-p", str(ssh.port)]
    return [*line, "--", ssh.host]


def _ask_openssh(where: str, program: str, ssh: Ssh, config: Path | None) -> str:
    line = words(program, ssh, config)
    try:
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_LIMIT_S,
            start_new_session=True,  # without a terminal, so that no `Match exec` can ask there
        )
    except subprocess.TimeoutExpired as exc:
        raise SshOptionRefused(
            f"{where}: `ssh -G {ssh.host}` did not end within {ASK_LIMIT_S:.0f} s; "
            "next: look at `Match exec` and CanonicalizeHostname in ~/.ssh/config"
        ) from exc
    except OSError as exc:
        raise SshOptionRefused(
            f"{where}: {program} cannot be run: {exc.strerror}; next: repair OpenSSH's client"
        ) from exc
    if done.returncode != 0:
        said = done.stderr.strip().replace("\n", "; ") or f"exit code {done.returncode}"
        raise SshOptionRefused(
            f"{where}: OpenSSH does not take its configuration for {ssh.host}: {said}; "
            f"next: `ssh -G {ssh.host}` must print it"
        )
    return done.stdout


def _ask_paramiko(where: str, ssh: Ssh, config: Path | None) -> Settings:
    """Without OpenSSH: the plain parts of the files, and an error for what paramiko can't do."""
    wins = [f"User {ssh.user}"] if ssh.user is not None else []
    wins += [f"Port {ssh.port}"] if ssh.port is not None else []
    parser = paramiko.SSHConfig()
    parser.parse(io.StringIO("\n".join(("Host *", *wins, ""))))
    for file in (config,) if config is not None else (Path(home(), ".ssh/config"), SYSTEM_CONFIG):
        try:
            text = file.read_text(errors="replace")
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise SshOptionRefused(
                f"{where}: {file}: {exc.strerror}; next: make it readable"
            ) from exc
        _refuse_what_paramiko_lacks(where, file, text)
        try:
            parser.parse(io.StringIO(text))
        except paramiko.SSHException as exc:
            raise SshOptionRefused(f"{where}: {file}: {exc}; next: correct it") from exc
    looked_up: Mapping[str, str | list[str]] = parser.lookup(ssh.host)
    found = {
        _present_name(k): list(v) if isinstance(v, list) else [v] for k, v in looked_up.items()
    }
    for keyword in _NUMBERS & found.keys():
        if not found[keyword][0].isdecimal():
            raise SshOptionRefused(
                f"{where}: ssh_config sets `{keyword} {found[keyword][0]}` for {ssh.host}, which is no "
                "number; next: correct it"
            )
    if "identityfile" not in found:
        found["identityfile"] = list(DEFAULT_IDENTITIES)
    return {"user": [local_user()], "port": ["22"], **found}


def _refuse_what_paramiko_lacks(where: str, file: Path, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        keyword, rest = (*line.replace("=", " ", 1).split(None, 1), "", "")[:2]
        name = _present_name(keyword)
        unknown = name in ("include", "setenv")
        if name in _LISTS:
            unknown = re.search(r"^[-+^]|[*?!]", rest.strip(' \t"')) is not None
        if name == "match":
            criteria = re.sub(r"\"[^\"]*\"", "x", rest.lower()).split()
            unknown = not all(
                c.lstrip("!") in _CRITERIA for c in criteria if _is_criterion(c, criteria)
            )
        if unknown:
            raise SshOptionRefused(
                f"{where}: {file}:{number}: `{line.strip()}` is understood only with OpenSSH's own "
                "client; next: install it (Debian: openssh-client)"
            )


def _is_criterion(word: str, line: list[str]) -> bool:
    """Whether a word after `Match` names a criterion, and is not the argument of the one before."""
    alone = ("all", "canonical", "final")
    position = 0
    while position < len(line):
        if line[position] is word:
            return True
        position += 1 if line[position].lstrip("!") in alone else 2
    return False
