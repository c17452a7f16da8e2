"""What serves one of our connections on the node, and its end when the connection is no more.

A connection that is lost without a word (a firewall has forgotten it, a cable is out) is known to be gone on
our side after some keepalives. The node's sshd asks for none by default: it may wait for a quarter of an
hour, and holds the ports that it forwards as long, so that a new connection can't have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_S = 10.0

# In sh. What stands behind the last ")" of /proc/PID/stat begins with the third field: the parent is the second
# of them, the start time the twentieth. The first sshd above us is the session's: it has the user's rights,
# the one above it has root's.
_WHO = r"""p=$$
while [ "$p" -gt 1 ]; do
s=$(cat "/proc/$p/stat") || exit 1
n=${s#*\(}
set -- ${s##*\) }
case ${n%%\)*} in sshd*) echo "$p ${20}"; exit 0;; esac
p=$2
done
exit 1"""

_END = r"""p=$1 t=$2
s=$(cat "/proc/$p/stat" 2>/dev/null) || exit 0
set -- ${s##*\) }
[ "${20}" = "$t" ] || exit 0
kill "$p" || exit 1
for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$p" 2>/dev/null || exit 0; sleep 0.1; done
exit 1"""


class Session(NamedTuple):
    """A process on the node. With its start time it is not taken for a later one of the same pid."""

    pid: int
    start_ticks: int


class Completed(Protocol):
    """How a command ended."""

    @property
    def code(self) -> int: ...
    @property
    def stdout(self) -> str: ...


class Connection(Protocol):
    """What is asked of an SSH connection."""

    def run(self, words: Sequence[str], *, limit_s: float) -> Completed:
        """Run a command there until it ends. Raises Failure where the connection breaks."""


def of(connection: Connection) -> Session | None:
    """What serves this connection there; None where that can't be told (no /proc, another server than
    OpenSSH's). Raises Failure."""
    done = connection.run(("sh", "-c", _WHO), limit_s=LIMIT_S)
    words = done.stdout.split()
    if done.code or len(words) != 2:
        return None
    return Session(int(words[0]), int(words[1]))


def end(connection: Connection, left: Session) -> bool:
    """Through a new connection, end what served an old one of the same user, if it is still there; whether
    it is gone. Raises Failure."""
    words = ("sh", "-c", _END, "end", str(left.pid), str(left.start_ticks))
    return connection.run(words, limit_s=LIMIT_S).code == 0
