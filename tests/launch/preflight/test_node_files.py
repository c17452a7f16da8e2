"""What travels to nodes can run there: the standard library, Python 3.8, any locale."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from vdisagg.launch.preflight import shell

LOOK = {"step": "look", "model": {"name": "org/name"}}
FILES = dict.fromkeys(module for some in shell.MODULES.values() for module in some)
NAMES = [module.__name__ for module in FILES]


def tree(module: ModuleType) -> ast.Module:
    # Annotations stay text on a node, so newer ones than 3.8's do no harm; grammar would.
    return ast.parse(Path(module.__file__ or "").read_text(), feature_version=(3, 8))


def run_time_imports(module: ModuleType) -> set[str]:
    """Dotted names, without those that only type checkers look at."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree(module)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("module", FILES, ids=NAMES)
def test_d05_a_file_for_nodes_needs_the_standard_library_and_what_travels_before_it(
    module: ModuleType,
) -> None:
    before = NAMES[: NAMES.index(module.__name__)]
    strangers = {
        name
        for name in run_time_imports(module)
        if name.split(".")[0] not in sys.stdlib_module_names and name not in before
    }
    assert strangers == set()


def test_what_travels_is_ascii_whatever_a_nodes_locale() -> None:
    assert shell.script({**LOOK, "directory": "/ü"}).isascii()


def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.6.8\nexit 1\n')
    old.chmod(0o755)
    words = ["sh", "-s", "no-such-python", str(old)]
    done = subprocess.run(words, input=shell.script(LOOK), capture_output=True, text=True)
    assert done.returncode == shell.NO_PYTHON
    assert done.stdout == f"no-such-python: not found\n{old}: Python 3.6.8\n"


def test_what_asks_a_hub_travels_only_where_a_hub_is_asked() -> None:
    assert "urllib.request" in shell.script(LOOK)
    assert "urllib.request" not in shell.script({"step": "look", "model": {"name": "/models/m"}})
