"""One tree of errors. Each message says where, what, and what next.

Error
├── UsageError            the user's input is wrong: exit code 2, nothing was started
│   └── TopologyError     …in a topology file: carries every finding at once
└── Failure               the world said no: exit code 1
    ├── PlanConflict      a port or a GPU that the plan needs is taken
    ├── PreflightFailed   nodes are not fit for the plan: names every finding
    ├── ClusterBusy       another command holds the cluster's lock
    ├── RecordUnreadable  what runs can't be read from the cluster's record
    ├── LaunchFailed      a process died or did not become ready in time
    │   └── Occupied      …or something that another launch has started lives in its place
    ├── ControllerGone    the controller does not answer on its admin socket
    ├── Unreachable       a node cannot be reached over SSH, or the connection broke
    ├── HostKeyRefused    the host key of a node, or of a jump host, is unknown or another one
    ├── AuthenticationFailed  a node let in none of our SSH keys, or there is none
    ├── SshOptionRefused  ssh_config asks for something that changes the connection and isn't supported
    ├── ProtocolError     an engine or a front end spoke a protocol that we do not know
    └── Interrupted       a signal came; what was begun has been undone: exit code 128 + signal
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Error(Exception):
    """Base of all errors that are shown to the user without a traceback."""

    exit_code = 1


class UsageError(Error):
    """The input is wrong; nothing was started."""

    exit_code = 2


@dataclass(frozen=True)
class Finding:
    """One fault in a topology file. `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    key_path: str
    what: str
    next: str = ""

    def __str__(self) -> str:
        key = f"{self.key_path}: " if self.key_path else ""
        tail = f"; {self.next}" if self.next else ""
        return f"{self.file}:{self.line}:{self.column} {key}{self.what}{tail}"


class TopologyError(UsageError):
    """A topology file has faults; `findings` holds all of them, in file order."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(sorted(findings, key=lambda f: (f.line, f.column, f.key_path)))
        super().__init__("\n".join(str(finding) for finding in self.findings))


class Failure(Error):
    """The input was right and the world said no."""


class PlanConflict(Failure):
    """A port or a GPU that the plan needs is taken."""


class PreflightFailed(Failure):
    """Nodes are not fit for the plan; nothing was started."""


class ClusterBusy(Failure):
    """Another command holds the cluster's lock."""


class RecordUnreadable(Failure):
    """The cluster's record cannot be read, or is none."""


class LaunchFailed(Failure):
    """A process died or did not become ready in time."""


class Occupied(LaunchFailed):
    """Something that another launch has started lives where a process was to be started."""


class ControllerGone(Failure):
    """The controller does not answer on its admin socket."""


class Unreachable(Failure):
    """A node cannot be reached over SSH, the connection broke, or an answer did not come in time."""


class HostKeyRefused(Failure):
    """The host key of a node, or of a jump host on the way, is unknown, revoked or another one."""


class AuthenticationFailed(Failure):
    """A node, or a jump host on the way, let in none of our SSH keys, or there is none to try."""


class SshOptionRefused(Failure):
    """The user's ssh_config asks for something that changes the connection and is not supported."""


class ProtocolError(Failure):
    """An engine or a front end spoke a protocol that this version does not know."""


class Interrupted(Failure):
    """A signal asked the command to stop, and it has undone what it began."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
