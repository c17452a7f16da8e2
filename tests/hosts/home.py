"""A home of one's own: a machine's user database with another home directory for who runs the tests.

`~`, `$HOME`, the directory that a login begins in, sshd's, SFTP's and ssh's own idea of home all come
from the user database, so a process with a database of its own, mounted over /etc/passwd for it alone,
has a home of its own in every sense. Variables would not do: SFTP and ssh do not look at $HOME.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def user_name() -> str:
    """Who runs the tests."""
    return pwd.getpwuid(os.getuid()).pw_name


def write_passwd(file: Path, home: Path, *, shell: str = "/bin/bash") -> None:
    """Write a copy of the machine's user database where our user has that home and shell."""
    lines = []
    for line in Path("/etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == user_name():
            fields[5:7] = [str(home), shell]
        lines.append(":".join(fields))
    file.write_text("\n".join(lines) + "\n")


def with_home(directory: Path, home: Path) -> tuple[str, ...]:
    """Words before a command that give it that home; the database is kept in `directory`. As root."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    passwd = directory / "passwd"
    write_passwd(passwd, home)
    script = 'mount --bind "$1" /etc/passwd; shift; exec "$@"'
    return ("unshare", "--mount", "sh", "-ec", script, "with-home", str(passwd))
