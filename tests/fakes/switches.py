"""The modules that lie on the PYTHONPATH of stock processes, loaded into the tests' own process."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from vdisagg.launch.local import SWITCHES


def load(name: str) -> ModuleType:
    """One of them, under its own name: they import each other by it."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SWITCHES / f"{name}.py")
        assert spec
        assert spec.loader
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
