"""Who may connect to the endpoints, with real connections from several loopback addresses."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest
import zmq

from fakes.cluster import Cluster, make_plan
from fakes.engine import continuation
from vdisagg.control import wire
from vdisagg.control.admission import admitted, canonical
from vdisagg.plan.model import Node

Clusters = Callable[..., Cluster]
PROMPT = list(range(20))


@pytest.mark.parametrize("which", ["handshake", "requests", "outputs"])
def test_a_strangers_connection_is_turned_away_and_the_engine_is_safe(
    cluster_of: Clusters, which: str
) -> None:
    cluster = cluster_of().up()
    instance = cluster.plan.instances[1]
    target = getattr(instance, which)
    said = f"{instance.name} {which}: turned away 127.0.0.7, which is no node's address (data_ip)"
    with zmq.Context() as context:
        stranger = context.socket(zmq.PUSH if which == "outputs" else zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.IDENTITY, wire.IDENTITY)
        stranger.connect(f"tcp://127.0.0.7:0;{target.host}:{target.port}")
        stranger.send(wire.encode(wire.Greeting("HELLO")))
        stranger.send(wire.ENGINE_CORE_DEAD)
        try:
            cluster.until(lambda: said in cluster.events())
            assert cluster.front.generate(PROMPT) == continuation(PROMPT, 16)
        finally:
            stranger.close()
    assert cluster.instance("d0").state == "ready"
    assert cluster.events().count(said) == 1


def test_nodes_the_controllers_own_addresses_and_loopback_are_admitted(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 1, 1, interval_s=10)
    nodes = (
        Node("a", "cpu", "192.0.2.7"),
        Node("b", "cpu", "2001:db8::7"),
        Node("c", "cpu", "localhost"),
        Node("d", "cpu", "no-such-name.invalid"),
    )
    found = {str(ip) for ip in admitted(msgspec.structs.replace(plan, nodes=nodes))}
    assert found == {"127.0.0.1", "::1", "192.0.2.7", "2001:db8::7"}


def test_an_address_is_the_same_however_a_socket_shows_it() -> None:
    assert canonical("::ffff:192.0.2.7") == ip_address("192.0.2.7")
    assert canonical("fe80::1%eth0") == ip_address("fe80::1")
