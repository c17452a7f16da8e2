"""Topology → Plan: names, addresses, directories; then each process from its own module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

from vdisagg.errors import UsageError
from vdisagg.plan import connectors, model, processes
from vdisagg.plan.addresses import refuse_ambiguous
from vdisagg.plan.model import Address, Instance, Plan
from vdisagg.plan.ports import Ports
from vdisagg.plan.site import LOOPBACK, Here, Site
from vdisagg.topology import checks
from vdisagg.topology.engines import assign_gpus, engines
from vdisagg.topology.fault import spell
from vdisagg.topology.model import Topology

__all__ = ["Here", "make_plan"]


def make_plan(
    topology: Topology, here: Here, *, file: Path | str = "", busy: Collection[int] = ()
) -> Plan:
    """Resolve a topology to argv, environment, ports and GPUs. Pure: the same input, the same plan.

    `file` is where the topology came from, for people. `busy` are ports that planned (not
    user-set) addresses avoid. Raises UsageError for what the topology may not say.
    """
    _refuse(topology)
    refuse_ambiguous(topology, here)
    site = Site(topology, here)
    connector = connectors.find(topology.connector)
    ports = Ports(topology.ports.first, {*busy, topology.front_end.port})
    gpus, _ = assign_gpus(topology)
    instances: list[Instance] = []
    for engine in engines(topology):
        host = site.controller_host(engine.node)
        handshake, requests, outputs = (Address(host, ports.take()) for _ in range(3))
        own_ports = ports.take_many(connector.ports_needed())
        own_gpus = gpus.get(engine.name, ())
        instances.append(
            Instance(
                name=engine.name,
                role=engine.role,
                process=processes.engine(site, connector, engine, own_gpus, handshake, own_ports),
                gpus=own_gpus,
                handshake=handshake,
                requests=requests,
                outputs=outputs,
                connector_ports=own_ports,
                manual=engine.manual,
            )
        )
    front_handshake = Address(_front_end_host(site), ports.take())
    far = dict.fromkeys(e.node for e in engines(topology) if not site.node(e.node).local)
    resolved = topology.model_dump(mode="json")
    return Plan(
        name=topology.name,
        topology_file=str(file),
        digest=digest(resolved),
        topology=resolved,
        model=topology.model,
        connector=topology.connector,
        instances=tuple(instances),
        front_end=processes.front_end(site, front_handshake),
        controller=processes.controller(site),
        heartbeat=model.Heartbeat(**topology.heartbeat.model_dump()),
        timeouts=model.Timeouts(**topology.timeouts.model_dump()),
        restart=model.Restart(**topology.restart.model_dump()),
        failover=model.Failover(**topology.failover.model_dump()),
        control=topology.control,
        tunnels=tuple(processes.tunnel(site, node) for node in far if topology.control == "tunnel"),
        nodes=tuple(_node(site, name) for name in topology.nodes),
    )


def _front_end_host(site: Site) -> str:
    """Where the front end waits for the controller: on loopback where both are here."""
    name = site.topology.front_end.node
    both_here = site.node(name).local and site.node(site.topology.controller.node).local
    return LOOPBACK if both_here else site.host(name)


def _node(site: Site, name: str) -> model.Node:
    node = site.node(name)
    return model.Node(
        name=name,
        device=node.device,
        address=site.host(name),
        ssh=model.Ssh(**node.ssh.model_dump()) if node.ssh is not None else None,
        python=node.python,
        work_directory=site.base(name),
        setup=node.setup,
    )


def digest(resolved: dict[str, object]) -> str:
    """SHA-256 over the canonical JSON of a resolved topology."""
    text = json.dumps(resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse(topology: Topology) -> None:
    """`load` reports these with a place in the file; a topology made by hand comes here only."""
    faults = checks.check(topology)
    if faults:
        raise UsageError("\n".join(f"{spell(f.path)}: {f.what}; {f.next}" for f in faults))
