"""The node's own vLLM: what a setup makes of the environment, and which Python runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vdisagg.launch.preflight.node import environment
from vdisagg.plan.site import SETUP

Venv = Path


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    """An environment with a vllm script and the metadata of three distributions."""
    root = tmp_path / "venv"
    (root / "bin").mkdir(parents=True)
    site = root / "site"
    for name, version in (("vllm", "0.32.0+cpu"), ("torch", "2.13.0+cpu"), ("nixl", "1.5.1")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = root / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    write_script(root / "bin" / "vllm", f"#!{python}\n")
    python.chmod(0o755)
    (root / "activate").write_text(f"PATH={root}/bin:$PATH\n")
    return root


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def wrapper(setup: str) -> list[str]:
    return ["bash", "-ec", SETUP.format(setup=setup), "setup"]


def test_d05_vllm_in_an_environment_that_only_the_setup_activates_is_found(venv: Venv) -> None:
    setup = f"echo three; echo lines >&2; echo of noise\nsource {venv}/activate"
    seen, variables = environment.look(wrapper(setup), ["vllm"], {"MINE": "1"})
    assert seen == {
        "kind": "",
        "fault": "",
        "command": f"{venv}/bin/vllm",
        "python": f"{venv}/bin/python3",
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "versions": {"vllm": "0.32.0+cpu", "torch": "2.13.0+cpu", "nixl": "1.5.1"},
    }
    assert variables["PATH"].startswith(f"{venv}/bin:")
    assert variables["MINE"] == "1"


def test_d05_a_setup_that_fails_is_told_with_its_last_words() -> None:
    seen, _ = environment.look(wrapper("echo no such module >&2; exit 4"), ["vllm"], {})
    assert (seen["kind"], seen["fault"]) == ("setup", "exit code 4: no such module")


def test_d05_a_vllm_that_is_not_there_is_told_with_the_path_that_was_searched() -> None:
    seen, _ = environment.look([], ["vllm"], {"PATH": "/nowhere"})
    assert (seen["kind"], seen["fault"]) == ("missing", "vllm is not on PATH (/nowhere)")


def test_a_named_python_is_asked_itself(venv: Venv) -> None:
    words = [f"{venv}/bin/python3", "-m", "vllm.entrypoints.cli.main"]
    seen, _ = environment.look([], words, {})
    assert seen["versions"]["vllm"] == "0.32.0+cpu"


def test_a_distribution_of_another_name_is_known_by_its_version_file(venv: Venv) -> None:
    (venv / "site" / "vllm-0.32.0+cpu.dist-info").rename(venv / "site" / "x.dist-info-off")
    package = venv / "site" / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('was imported')\n")
    (package / "_version.py").write_text("__version__ = version = '0.32.0.dev1'\n")
    seen, _ = environment.look([], [f"{venv}/bin/vllm"], {})
    assert seen["versions"]["vllm"] == "0.32.0.dev1"


def test_what_is_not_installed_has_no_version(venv: Venv) -> None:
    (venv / "site" / "nixl-1.5.1.dist-info" / "METADATA").unlink()
    (venv / "site" / "nixl-1.5.1.dist-info").rmdir()
    seen, _ = environment.look([], [f"{venv}/bin/vllm"], {})
    assert (seen["kind"], seen["versions"]["nixl"]) == ("", "")


@pytest.mark.parametrize(
    "first_lines",
    [
        "#!/usr/bin/env python3\n",
        "#!/usr/bin/env -S python3 -s\n",
        "#!/bin/sh\n'''exec' \"{venv}/bin/python3\" \"$0\" \"$@\"\n' '''\n",
    ],
    ids=["env", "env-S", "long path"],
)
def test_the_interpreter_is_read_off_the_scripts_first_lines(venv: Venv, first_lines: str) -> None:
    write_script(venv / "bin" / "vllm", first_lines.format(venv=venv))
    found = environment.interpreter(venv / "bin" / "vllm", {"PATH": f"{venv}/bin:/usr/bin:/bin"})
    assert found == f"{venv}/bin/python3"


def test_a_wrapper_in_another_language_is_said_to_be_one(venv: Venv) -> None:
    write_script(venv / "bin" / "vllm", "#!/bin/bash\nexec docker run vllm\n")
    seen, _ = environment.look([], [f"{venv}/bin/vllm"], {})
    assert seen["kind"] == "opaque"


def test_a_setup_that_hangs_is_ended_with_its_children(
    tmp_path: Path, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    pid = tmp_path / "pid"
    words = ["sh", "-c", f"sleep 1000 & echo $! > {pid}; wait"]
    with pytest.raises(subprocess.TimeoutExpired):
        environment.run(words, {"PATH": "/usr/bin:/bin"}, 5.0)
    wait_until(lambda: not is_alive(int(pid.read_text())))  # what is killed runs on for a moment
