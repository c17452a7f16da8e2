"""What planning knows of each node: its address, its folders, and how vLLM is called there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vdisagg.topology.model import Node, Topology

LOOPBACK = "127.0.0.1"
SETUP = '{setup}\nexec "$@"'
INTERPRETER = """\
vllm=$(command -v "$1") || { echo "$1: not found" >&2; exit 127; }
shift
IFS= read -r first <"$vllm"
case $first in
  "#!"*python*) exec ${first#"#!"} "$@" ;;
  *) exec "$(dirname "$vllm")/python" "$@" ;;
esac"""
"""Becomes the interpreter that the vllm script runs on: its first line names it, or it is beside it."""


@dataclass(frozen=True)
class Here:
    """The machine that plans, and what it has found out about the others."""

    python: str
    """The interpreter that runs the controller."""
    vllm: str
    """The vllm executable for local nodes that name none."""
    state_directory: Path
    """Where this cluster's record and admin socket are."""
    work_directory: Path
    """Base of the guards' directories on local nodes that name no work_dir."""
    pythonpath: str = ""
    """PYTHONPATH of the launching shell: local processes keep it."""
    home: str = "~"
    """Home directory of the launching user."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Data addresses that were looked up (see plan.addresses), by node."""
    routes: Mapping[str, str] = field(default_factory=dict)
    """This machine's own address on the way to each node that is reached by SSH, by node."""


@dataclass(frozen=True)
class Site:
    """A topology on this machine: answers questions about its nodes."""

    topology: Topology
    here: Here

    def node(self, name: str | None) -> Node:
        return self.topology.nodes[name or ""]

    def host(self, name: str | None) -> str:
        """The address under which a node's processes are reached by those of other nodes.

        A word that says so stands for an address that was not looked up.
        """
        node, name = self.node(name), name or ""
        named = self.named_host(name)
        if named is not None:
            return named
        if node.ssh is not None:
            return self.here.addresses.get(name, node.ssh.host)
        if not self.reached_from_elsewhere:
            return LOOPBACK
        return next(iter(self.here.routes.values()), f"ADDRESS-OF-{name}")

    def named_host(self, name: str | None) -> str | None:
        """The address that the topology names, as such or by its interface; None where it doesn't."""
        node, name = self.node(name), name or ""
        if node.data_ip is not None:
            return node.data_ip
        if node.interface is not None:
            return self.here.addresses.get(name, f"ADDRESS-OF-{node.interface}-ON-{name}")
        return None

    def controller_host(self, name: str | None) -> str:
        """The controller's address for instances on a node. Both ends' own where a tunnel is between.

        What the topology names holds for all. Else each node gets the address of the way to it, so
        that nodes on different networks each find one that they reach.
        """
        if self.topology.control == "tunnel":
            return LOOPBACK
        controller = self.topology.controller.node
        named = self.named_host(controller)
        if named is not None:
            return named
        if not self.node(controller).local:
            return self.host(controller)
        if self.node(name).local:
            return LOOPBACK
        return self.here.routes.get(name or "", f"ADDRESS-TOWARDS-{name}")

    def is_far_from_controller(self, name: str | None) -> bool:
        """Whether a network lies between a node and the controller, with a tunnel through it or not."""
        controller = self.topology.controller.node
        return name != controller and not (self.node(name).local and self.node(controller).local)

    @property
    def reached_from_elsewhere(self) -> bool:
        """Whether any node is another machine."""
        return any(not node.local for node in self.topology.nodes.values())

    def base(self, node_name: str | None) -> str:
        """Where all clusters' folders are on a node: `log_dir`, else its `work_dir`.

        On other machines it may start with `~/`, the login's home there.
        """
        node = self.node(node_name)
        default = str(self.here.work_directory) if node.local else "~/.vdisagg"
        base = self.topology.log_dir or node.work_dir or default
        if node.local and base.startswith("~/"):
            base = self.here.home + base[1:]
        return base.rstrip("/")

    def directory(self, node_name: str | None, process: str) -> str:
        """Where a process's guard keeps log, pid and exit code: BASE/CLUSTER/PROCESS."""
        return f"{self.base(node_name)}/{self.topology.name}/{process}"

    def serve(self, node_name: str | None, words: tuple[str, ...]) -> tuple[str, ...]:
        """The command `vllm serve` with these words, as the node calls it.

        A node's `setup` runs in a shell that then becomes vLLM: same pid, same group. It is asked
        for the `vllm` that the setup put on PATH, where the node names none.
        """
        node = self.node(node_name)
        if node.python is not None:
            vllm: tuple[str, ...] = (node.python, "-m", "vllm.entrypoints.cli.main")
        else:
            found = self.here.vllm if node.local and node.setup is None else "vllm"
            vllm = (node.vllm or found,)
        command = (*vllm, "serve", *words)
        return self._set_up(node_name, command)

    def vllm_python(self, node_name: str | None, words: tuple[str, ...]) -> tuple[str, ...]:
        """The interpreter of the node's vLLM with these words."""
        node = self.node(node_name)
        if node.python is not None:
            return self._set_up(node_name, (node.python, *words))
        finding = ("sh", "-c", INTERPRETER, "vllm-python", node.vllm or "vllm", *words)
        return self._set_up(node_name, finding)

    def _set_up(self, node_name: str | None, command: tuple[str, ...]) -> tuple[str, ...]:
        setup = self.node(node_name).setup
        if setup is None:
            return command
        return ("bash", "-ec", SETUP.format(setup=setup.strip()), "setup", *command)

    def switches(
        self, node_name: str | None, directory: str, env: dict[str, str]
    ) -> dict[str, str]:
        """PYTHONPATH with the switches in front of what it would be without them."""
        mine = self.here.pythonpath if self.node(node_name).local else ""
        rest = env.get("PYTHONPATH", mine)
        return {"PYTHONPATH": f"{directory}/switches" + (f":{rest}" if rest else "")}
