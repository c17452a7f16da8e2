"""Four switches for stock vLLM processes: all that they ever load from us, through PYTHONPATH.

VDISAGG_CHANNEL=1                 front end: its messages survive the controller (vdisagg_sockets)
VDISAGG_PING_S=N                  engines on other machines: they ping the controller every N s
VDISAGG_NIXL_PROGRESS_DELAY_US=N  engines on CPU: NIXL's progress thread rests N µs between polls
VDISAGG_KEEP_AFFINITY=1           engines on CPU: no thread is bound to a core from within

The first two touch pyzmq, the third NIXL's Python binding, the fourth the standard library; none
touches vLLM. Without the first a front end drops whatever it sends between a controller's death and the
next one's coming, and can't tell what the next one says for the second time.
An engine that does not ping has only the controller's pings to tell it that a path is gone, and libzmq
ends that watch with the next message of any other kind. A black hole that opens then leaves the
connection for requests, on which an engine sends nothing, open for ever.
NIXL's binding asks for a delay of 0, which keeps a core busy for nothing. vLLM's NIXL connector
binds the thread that makes it to the last core of each NUMA node, also with
`VLLM_CPU_OMP_THREADS_BIND=nobind`; where one process is the whole engine that is the thread that
runs the model, and all engines of a machine share that one core while the others stand idle.

Python imports one `sitecustomize` and no more: an interpreter's own one is run from here first.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PATIENCE = 1.5
"""A ping that is not answered for so many times N ends the connection, and it is made anew."""

NIXL_BINDINGS = ("nixl_cu13._api", "nixl_cu12._api", "nixl_rocm._api")


class Patching(Loader):
    """The usual loader of one module, with a patch applied right after the module has run."""

    def __init__(self, usual: Loader, patch: Callable[[Any], None]) -> None:
        self._usual = usual
        self._patch = patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        self._patch(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)  # get_source and the like, for whoever asks


class PatchOnImport(MetaPathFinder):
    """Finds what `patches` names as everybody does, and has it patched."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = self._patches.get(name)
        spec = PathFinder.find_spec(name, path, target) if patch is not None else None
        if patch is not None and spec is not None and spec.loader is not None:
            spec.loader = Patching(spec.loader, patch)
        return spec


def join_channel(sockets: Any) -> None:
    """Patch zmq.sugar.socket: see vdisagg_sockets, which lies beside this file."""
    import vdisagg_sockets  # type: ignore[import-not-found]  # lies beside this file

    vdisagg_sockets.patch(sockets)


def ping(sockets: Any) -> None:
    """Patch zmq.sugar.socket: what an engine dials the controller with, DEALER and PUSH over TCP, pings."""
    usual = sockets.Socket.connect
    every_ms = round(1000 * float(os.environ["VDISAGG_PING_S"]))

    def connect(self: Any, addr: Any) -> Any:
        import zmq  # half imported when this patch is made

        if str(addr).startswith("tcp:") and self.type in (zmq.DEALER, zmq.PUSH):
            self.setsockopt(zmq.HEARTBEAT_IVL, every_ms)
            self.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(PATIENCE * every_ms))
        return usual(self, addr)

    sockets.Socket.connect = connect


def calm(binding: Any) -> None:
    """Patch NIXL's binding: agents get the progress thread's delay from our variable."""
    usual = binding.nixlBind.nixlAgent
    delay_us = int(os.environ["VDISAGG_NIXL_PROGRESS_DELAY_US"])

    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = delay_us
        return usual(name, config)

    binding.nixlBind.nixlAgent = agent


def keep_affinity(system: Any) -> None:
    """Patch os: a process stays where it was put; asking for other cores changes nothing."""

    def unchanged(pid: int, mask: object) -> None:
        """Stands for sched_setaffinity."""

    system.sched_setaffinity = unchanged


def wanted(environment: Mapping[str, str]) -> dict[str, Callable[[Any], None]]:
    """The patches that the environment asks for, by module."""
    patches: dict[str, Callable[[Any], None]] = {}
    if environment.get("VDISAGG_CHANNEL") == "1":  # a front end dials no engine
        patches["zmq.sugar.socket"] = join_channel
    elif environment.get("VDISAGG_PING_S"):
        patches["zmq.sugar.socket"] = ping
    if environment.get("VDISAGG_NIXL_PROGRESS_DELAY_US"):
        patches.update(dict.fromkeys(NIXL_BINDINGS, calm))
    return patches


def run_shadowed() -> None:
    """Run the `sitecustomize` that this one hides, as distributions and site admins have one."""
    here = Path(__file__).parent.resolve()
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    run_shadowed()
    if os.environ.get("VDISAGG_KEEP_AFFINITY") == "1":
        keep_affinity(os)
    sys.meta_path.insert(0, PatchOnImport(wanted(os.environ)))
