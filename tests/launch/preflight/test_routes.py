"""Which machines dial which, and what a call that failed is said to be."""

from __future__ import annotations

import msgspec

from fakes.two_nodes import HERE, N1, instance, plan
from vdisagg.launch.preflight import routes
from vdisagg.plan.model import Address, Node, Ssh

ALL = ("here", "n1", "n2")


def test_d10_engines_dial_the_controller_and_decode_dials_prefill() -> None:
    found = {(r.source, r.target, str(r.address), r.callers) for r in routes.routes(plan(), ALL)}
    assert found == {
        *(("n1", "here", f"{HERE}:{21000 + i}", ("p0",)) for i in range(3)),
        *(("n2", "here", f"{HERE}:{21004 + i}", ("d0",)) for i in range(3)),
        ("n2", "n1", f"{N1}:21003", ("d0",)),
    }


def test_a_front_end_on_a_node_is_dialled_by_the_controller() -> None:
    front = plan().front_end
    moved = msgspec.structs.replace(
        front,
        handshake=Address(N1, 21050),
        process=msgspec.structs.replace(front.process, node="n1"),
    )
    found = routes.routes(plan(front_end=moved), ALL)
    assert [(r.target, r.callers) for r in found if r.source == "here"] == [("n1", ("controller",))]


def test_through_a_tunnel_only_side_channels_are_dialled() -> None:
    found = routes.routes(plan(control="tunnel"), ALL)
    assert [(r.source, r.target, r.what) for r in found] == [("n2", "n1", "p0's side channel")]


def test_within_a_node_nothing_is_dialled_and_engines_of_a_node_share_a_call() -> None:
    four = plan(
        instance("p0", "n1"),
        instance("d0", "n1", first=21010),
        instance("d1", "n2", first=21020),
        instance("d2", "n2", first=21030),
    )
    side = [r for r in routes.routes(four, ALL) if r.address.port == 21003]
    assert [(r.source, r.callers) for r in side] == [("n2", ("d1", "d2"))]


def test_a_node_that_did_not_answer_is_neither_called_nor_calling() -> None:
    found = routes.routes(plan(), ("here", "n1"))
    assert {(r.source, r.target) for r in found} == {("n1", "here")}


def test_listeners_know_how_many_will_call() -> None:
    two = plan(
        instance("p0", "n1"),
        instance("d0", "n2", first=21010),
        instance("d1", "here", first=21020),
    )
    some = routes.routes(two, ALL)
    assert routes.listening(some)["n1"] == {Address(N1, 21003): 2}
    assert routes.dialling(some)["n2"].count(Address(N1, 21003)) == 1


def test_d10_a_path_that_is_not_open_names_both_ends() -> None:
    some = routes.routes(plan(), ALL)
    side = Address(N1, 21003)
    heard = {(r.source, r.address): "timed out" if r.address == side else "" for r in some}
    listened = {(r.target, r.address): "" for r in some}
    (one,) = routes.judge(some, heard, listened)
    assert (one.node, one.level) == ("n2", "error")
    assert one.found == "d0 on n2 cannot reach p0's side channel 127.0.0.1:21003 on n1: timed out"
    assert one.next.startswith("open TCP port 21003 from n2 to n1")


def test_d10_ipv6_addresses_are_told_in_brackets() -> None:
    six = plan(
        nodes=(
            Node("here", "cpu", "::1"),
            Node("n1", "cpu", "2001:db8::1", Ssh("n1")),
            Node("n2", "cpu", "2001:db8::2", Ssh("n2")),
        )
    )
    some = routes.routes(six, ("n1", "n2"))
    heard = {("n2", Address("2001:db8::1", 21003)): "no route to host"}
    listened = {("n1", Address("2001:db8::1", 21003)): ""}
    (one,) = routes.judge(some, heard, listened)
    assert "[2001:db8::1]:21003 on n1: no route to host" in one.found


def test_a_port_that_could_not_be_listened_on_blames_no_path() -> None:
    some = routes.routes(plan(), ("n1", "n2"))
    address = Address(N1, 21003)
    heard = {("n2", address): "something else answers there"}
    assert routes.judge(some, heard, {("n1", address): "the port is taken"}) == []
    assert routes.judge(some, heard, {}) == []


def test_an_address_that_leads_elsewhere_is_said_to() -> None:
    some = routes.routes(plan(), ("n1", "n2"))
    address = Address(N1, 21003)
    heard = {("n2", address): "something else answers there"}
    (one,) = routes.judge(some, heard, {("n1", address): ""})
    assert "to another machine than n1" in one.next
