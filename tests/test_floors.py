"""The house keeps its floors: imports run one way, and heavy libraries stay where they belong."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "vdisagg"
FILES = sorted(PACKAGE.rglob("*.py"))

FLOORS: dict[str, set[str]] = {
    "errors": set(),
    "topology": {"errors"},
    "plan": {"topology", "errors"},
    "cluster": {"plan", "errors"},
    "launch": {"cluster", "plan", "topology", "errors"},
    "control": {"cluster", "plan", "topology", "errors"},
    "bench": {"cluster", "plan", "topology", "errors"},
    "view": {"bench", "cluster", "plan", "topology", "errors"},  # bench: the values that it shows
}
"""Which parts of the package a part may import, beside itself. cli/ and __main__.py may import all."""

HOMES: dict[str, tuple[str, ...]] = {
    "paramiko": ("launch/ssh",),
    "zmq": ("control/admission", "control/endpoint", "control/front", "control/sockets"),
    "rich": ("view/",),
    "typer": ("cli/",),
    "pydantic": ("topology/",),
    "pydantic_core": ("topology/",),
    "yaml": ("topology/",),
    "aiohttp": ("bench/",),
    "plotly": ("view/page/",),
    "torch": (),
    "vllm": (),
}
"""Where a library may be imported: paths under vdisagg/ that start so."""

LIGHT = ("cluster/", "plan/model.py", "errors.py")
"""What the controller imports before it does anything: msgspec and the standard library."""

SWITCHES = "launch/switches/"
"""Not part of the package: a file that stock processes load from their PYTHONPATH."""


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(path: Path) -> set[str]:
    """All modules that a file imports anywhere in it, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(name: str, imported: set[str]) -> list[str]:
    """What a file of the package imports and may not."""
    found = []
    part = name.split("/")[0].removesuffix(".py")
    for module in sorted(imported):
        top, *rest = module.split(".")
        if top == "vdisagg":
            inner = rest[0] if rest else ""
            free = part in ("cli", "__main__") or inner in (part, "__version__")
            if not free and inner not in FLOORS.get(part, set()):
                found.append(module)
        elif (top in HOMES and not name.startswith(HOMES[top])) or (
            name.startswith(LIGHT) and top not in sys.stdlib_module_names | {"msgspec"}
        ):
            found.append(module)
        if name == "plan/model.py" and module.startswith("vdisagg."):
            found.append(module)
    return found


@pytest.mark.parametrize("path", [f for f in FILES if SWITCHES not in name_of(f)], ids=name_of)
def test_a_file_imports_only_from_floors_below_and_libraries_at_home(path: Path) -> None:
    assert violations(name_of(path), imports(path)) == []


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("topology/load.py", "vdisagg.plan.make"),
        ("plan/make.py", "vdisagg.launch.up"),
        ("launch/up.py", "vdisagg.control.wire"),
        ("control/front.py", "vdisagg.launch.local"),
        ("view/plan.py", "vdisagg.launch.up"),
        ("cluster/record.py", "pydantic.BaseModel"),
        ("plan/model.py", "vdisagg.topology.load"),
        ("launch/local.py", "paramiko.client"),
        ("control/dispatch.py", "zmq"),
        ("plan/make.py", "yaml"),
        ("control/wire.py", "vllm.v1.engine"),
    ],
)
def test_the_rule_finds_each_kind_of_violation(name: str, imported: str) -> None:
    assert violations(name, {imported}) != []


def test_every_file_says_in_its_first_line_what_it_is_for() -> None:
    silent = [name_of(f) for f in FILES if not ast.get_docstring(ast.parse(f.read_text()))]
    assert silent == []
