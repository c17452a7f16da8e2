"""A set of namespaces that lives as long as one process in it: the inside of a machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hosts.processes import children, end_tree

Found = TypeVar("Found")
START_LIMIT_S = 10.0
NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
KEEPER = "sleep 2147483647"
# `wait` of a shell reaps what is not its own child as well: all that an init has to do.
INIT = f"{KEEPER} & wait"


class Namespaces:
    """A set of namespaces and the init that keeps them."""

    def __init__(self, directory: Path, set_up: Sequence[str] = ()) -> None:
        """`set_up` is a script and its arguments, run in the namespaces before anything else."""
        script, *arguments = set_up or ("",)
        # KILL for unshare when our thread ends, for the init when unshare does.
        words = [
            *("setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES),
            *("--fork", "--kill-child", "--mount-proc"),
            *("sh", "-ec", f"{script}\n{INIT}", "init", *arguments),
        ]
        with (directory / "init.log").open("ab") as log:
            self.holder = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        self.init = self._wait_for_init(directory)

    def _wait_for_init(self, directory: Path) -> int:
        """The init's pid, once it is there."""
        return wait_for(
            lambda: next(iter(children(self.holder.pid)), 0),
            lambda: f"{self.holder.poll()}: {(directory / 'init.log').read_text()}",
        )

    def enter(self, *words: str) -> tuple[str, ...]:
        """The words that run `words` in there."""
        return ("nsenter", "--target", str(self.init), *NAMESPACES, "--", *words)

    def ip(self, *words: str) -> str:
        """Run `ip` on the network in there, and return what it prints; pids in `words` are this machine's."""
        command = ("nsenter", "--target", str(self.init), "--net", "--", "ip", *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def end(self) -> None:
        """End the init, and so all that is in there."""
        end_tree(self.holder)


def wait_for(
    condition: Callable[[], Found], excuse: Callable[[], str], limit_s: float = START_LIMIT_S
) -> Found:
    """Wait until `condition` gives something true, and return that; `excuse` goes into the failure."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, excuse()
        time.sleep(0.01)
    return found
