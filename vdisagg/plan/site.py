"""What planning knows of each node: its address, its folders, and how vLLM is called there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vdisagg.topology.model import Node, Topology

LOOPBACK = "127.0.0.1"
SETUP = '{setup}\nexec "$@"'


@dataclass(frozen=True)
class Here:
    """The machine that plans."""

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


@dataclass(frozen=True)
class Site:
    """A topology on this machine: answers questions about its nodes."""

    topology: Topology
    here: Here

    def node(self, name: str | None) -> Node:
        return self.topology.nodes[name or ""]

    def host(self, name: str | None) -> str:
        """The address under which a node's processes are reached by the others."""
        node = self.node(name)
        if node.data_ip is not None:
            return node.data_ip
        return node.ssh.host if node.ssh else LOOPBACK

    def base(self, node_name: str | None) -> str:
        """Where all clusters' folders are on a node: `log_dir`, else its `work_dir`."""
        node = self.node(node_name)
        default = str(self.here.work_directory) if node.local else "~/.vdisagg"
        return (self.topology.log_dir or node.work_dir or default).rstrip("/")

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
        if node.setup is None:
            return command
        return ("bash", "-ec", SETUP.format(setup=node.setup.strip()), "setup", *command)

    def switches(
        self, node_name: str | None, directory: str, env: dict[str, str]
    ) -> dict[str, str]:
        """PYTHONPATH with the switches in front of what it would be without them."""
        mine = self.here.pythonpath if self.node(node_name).local else ""
        rest = env.get("PYTHONPATH", mine)
        return {"PYTHONPATH": f"{directory}/switches" + (f":{rest}" if rest else "")}
