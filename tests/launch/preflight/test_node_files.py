"""What travels to nodes can run there: the standard library, Python 3.8, any locale."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from vdisagg.launch import deputy, dialogue, errands, guard, interfaces, logfile
from vdisagg.launch.preflight import asking
from vdisagg.launch.preflight.node import hub

LOOK = {"step": "look", "model": {"name": "org/name"}}
ALONE = (deputy, errands, guard, interfaces, logfile)
FILES = dict.fromkeys((*ALONE, *(module for some in asking.MODULES.values() for module in some)))
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


def test_what_looks_for_a_python_can_be_read_by_any() -> None:
    compile(dialogue.BOOT, "boot", "exec", ast.PyCF_ONLY_AST)
    assert 'f"' not in dialogue.BOOT
    assert dialogue.BOOT.isascii()


def test_what_asks_a_hub_travels_only_where_a_hub_is_asked() -> None:
    assert hub in asking.travelling(LOOK)
    assert hub not in asking.travelling({"step": "look", "model": {"name": "/models/m"}})
