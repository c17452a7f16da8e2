"""How preflight asks a node: the files of node/ as one text, to a Python there, on its stdin.

Nothing is written on the node, so a full or read-only disk is a finding and not a failure.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from vdisagg.errors import Failure
from vdisagg.launch import ports, pythons
from vdisagg.launch.preflight.node import environment, gpus, hub, machine, model, paths

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from vdisagg.launch.remote import Completed
    from vdisagg.plan.model import Node

LOOK: tuple[ModuleType, ...] = (ports, environment, gpus, hub, model, machine)
CALL: tuple[ModuleType, ...] = (paths,)
MODULES: dict[str, tuple[ModuleType, ...]] = {"look": LOOK, "listen": CALL, "dial": CALL}
"""By step: the modules that it needs, each after those that it imports. The last one has a function of
the step's name."""

BEGIN, AFTER = "<<<vdisagg-preflight ", " vdisagg-preflight>>>"
BOOT = f"""\
import json, sys, types
bundle = json.loads(sys.stdin.buffer.read().decode())
for name, source in bundle["modules"]:
    module = types.ModuleType(name)
    parts = name.split(".")
    for size in range(1, len(parts)):
        package = sys.modules.setdefault(".".join(parts[:size]), types.ModuleType(parts[size - 1]))
        package.__path__ = []
        if size > 1:
            setattr(sys.modules[".".join(parts[: size - 1])], parts[size - 1], package)
    sys.modules[name] = module
    setattr(package, parts[-1], module)
    exec(compile(source, name, "exec"), module.__dict__)
answer = getattr(module, bundle["job"]["step"])(bundle["job"])
sys.stdout.write("\\n" + {BEGIN!r} + json.dumps(answer) + {AFTER!r} + "\\n")
"""
"""Makes the modules out of their texts, carries the job out, and answers between markers."""

FIT = """"$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null"""
END = "vdisagg-end-of-bundle"
NO_PYTHON = pythons.NONE_FIT


class Shell(Protocol):
    """A node that runs commands: launch.ssh's Connection, or this machine."""

    def run(self, words: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        """Run a command until it ends. Raises Failure where the node can't be asked, or is late."""


class NoPython(Failure):
    """The node has no Python that is fit; the message says what was tried."""


def ask(shell: Shell, node: Node, job: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
    """What the node answers to a job.

    Raises NoPython, and Failure where it can't be asked or its answer is none.
    """
    own = (sys.executable,) if node.ssh is None else ()
    words = ("sh", "-s", *own, *pythons.candidates(node.python))
    done = shell.run(words, stdin=script(job), limit_s=limit_s)
    if BEGIN in done.stdout and AFTER in done.stdout:
        answer = json.loads(done.stdout.rpartition(BEGIN)[2].partition(AFTER)[0])
        assert isinstance(answer, dict)
        return answer
    if done.code == NO_PYTHON:
        raise NoPython("; ".join(done.stdout.split("\n")).strip("; "))
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    raise Failure(f"the check there ended with exit code {done.code}: {said[:500]}")


def script(job: dict[str, Any]) -> str:
    """What goes to `sh -s`: all of it ASCII, whatever the node's locale."""
    wanted = job.get("model")
    spared = hub if wanted is None or model.is_path(wanted["name"]) else None  # it is slow to load
    sources = [
        (module.__name__, Path(module.__file__ or "").read_text())
        for module in MODULES[job["step"]]
        if module is not spared
    ]
    bundle = json.dumps({"modules": sources, "job": job})
    run = f"exec \"$python\" -I -S -c {shlex.quote(BOOT)} <<'{END}'\n{bundle}\n{END}"
    return pythons.script(fit=FIT, then=run)


class Ran(msgspec.Struct, frozen=True):
    """How a command on this machine ended."""

    code: int
    stdout: str
    stderr: str


class Here:
    """Implements Shell for this machine."""

    def run(self, words: Sequence[str], *, stdin: str = "", limit_s: float) -> Ran:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that a setup's children can be ended with it
        )
        try:
            out, err = process.communicate(stdin, timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Failure(f"did not answer within {limit_s:.0f} s") from None
        return Ran(process.returncode, out, err)
