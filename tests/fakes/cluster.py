"""A whole control plane on loopback: the real controller between fake engines and a fake front end."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from fakes.engine import Behaviour, FakeEngine, KvStore
from fakes.front import PATIENCE_S, FakeFront
from vdisagg.cluster import admin
from vdisagg.control.controller import Controller
from vdisagg.plan.model import (
    Address,
    FrontEnd,
    Heartbeat,
    Instance,
    Kind,
    Plan,
    Process,
    Role,
    Timeouts,
)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, held together while they are chosen."""
    holders = [socket.socket() for _ in range(count)]
    try:
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()


def make_plan(
    directory: Path, prefill: int, decode: int, *, interval_s: float, misses: int = 3
) -> Plan:
    """A plan of fakes: nothing in it is ever launched."""
    ports = iter(free_ports(3 * (prefill + decode) + 2))

    def address() -> Address:
        return Address("127.0.0.1", next(ports))

    def process(name: str, kind: Kind) -> Process:
        return Process(name, kind, "here", ("true",), {}, str(directory / name))

    def instance(name: str, role: Role) -> Instance:
        return Instance(name, role, process(name, role), (), address(), address(), address())

    return Plan(
        name="fakes",
        topology_file="",
        digest="",
        topology={},
        model="fake",
        connector="nixl",
        instances=(
            *(instance(f"p{i}", "prefill") for i in range(prefill)),
            *(instance(f"d{i}", "decode") for i in range(decode)),
        ),
        front_end=FrontEnd(process("front", "front_end"), address(), address(), 1, "fake"),
        controller=process("controller", "controller"),
        heartbeat=Heartbeat(interval_s=interval_s, misses=misses, canary_tokens=8),
        timeouts=Timeouts(launch_s=10, stop_s=1, request_s=30),
    )


class Cluster:
    """A running controller with its fakes."""

    def __init__(
        self,
        directory: Path,
        prefill: int,
        decode: int,
        *,
        interval_s: float = 3600.0,
        misses: int = 3,
        api_servers: int = 1,
    ) -> None:
        self.directory = directory
        self.plan = make_plan(directory, prefill, decode, interval_s=interval_s, misses=misses)
        self.store = KvStore()
        self.controller = Controller(self.plan, directory, rng=random.Random(0))
        self._thread = threading.Thread(target=self.controller.run, daemon=True)
        self._thread.start()
        self.engines: dict[str, FakeEngine] = {}
        self.front = FakeFront(self.plan.front_end.handshake, api_servers=api_servers)

    def launch(self, name: str, *, version: str = "0.32.0", **switches: object) -> FakeEngine:
        """Start (again) the fake engine of an instance."""
        instance = next(i for i in self.plan.instances if i.name == name)
        engine = FakeEngine(
            instance.handshake.zmq,
            self.store,
            name=name,
            version=version,
            behaviour=Behaviour(**switches),  # type: ignore[arg-type]
        )
        self.engines[name] = engine
        return engine

    def up(self) -> Cluster:
        """Launch all engines, wait for warm links, attach the front end."""
        for instance in self.plan.instances:
            self.launch(instance.name)
        self.front.attach()
        self.until(lambda: all(link.state == "warm" for link in self.status().links))
        return self

    def status(self) -> admin.ControllerStatus:
        """Over the admin socket, as the CLI asks."""
        return admin.ask(self.directory, admin.ControllerStatus, "status", timeout_s=PATIENCE_S)

    def instance(self, name: str) -> admin.InstanceStatus:
        """One instance's part of the status."""
        return next(i for i in self.status().instances if i.name == name)

    def events(self) -> list[str]:
        """What has happened, a line each."""
        events = admin.ask(self.directory, admin.Events, "events", timeout_s=PATIENCE_S).events
        return [f"{event.subject}: {event.what}" for event in events]

    def until(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Wait for a condition, reading the front end's outputs meanwhile."""
        self.front.until(condition, patience_s)

    def settle(self) -> None:
        """Wait until nothing is under way anywhere, nudges and releases included."""
        self.until(lambda: not any(e.running for e in self.engines.values()))
        self.until(lambda: self.status().totals.in_flight == 0)

    def close(self) -> None:
        """End the fakes, then the controller."""
        for engine in self.engines.values():
            engine.kill()
        self.front.close()
        self.controller.stop()
        self._thread.join()
