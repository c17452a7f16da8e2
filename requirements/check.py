"""Sees that the environment is whole: the imports that engines make, and vLLM's own name for itself."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

# vllm._custom_ops loads the kernels that fit this machine's instruction set.
MODULES = ("torch", "transformers", "nixl._api", "openai", "vllm", "vllm._custom_ops", "vdisagg")


def main() -> int:
    """Exit code 0 when all is well; otherwise says what is broken and what to do."""
    for module in MODULES:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as exc:
            print(f"{sys.prefix}: import {module} fails: {exc}", file=sys.stderr)
            if module == "torch":
                print(
                    "pip took a GPU build of torch. Point it to PyTorch's CPU wheels (PyTorch's "
                    "install page names their index; set PIP_EXTRA_INDEX_URL to it), then run "
                    "`make clean` and make again.",
                    file=sys.stderr,
                )
            return 1
    command = Path(sys.executable).with_name("vllm")
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if answer.returncode or not answer.stdout.strip().endswith("0.32.0+cpu"):
        print(f"{command} --version says:\n{answer.stdout}{answer.stderr}", file=sys.stderr)
        return 1
    print(f"vLLM {answer.stdout.split()[-1]} answers in {sys.prefix}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
