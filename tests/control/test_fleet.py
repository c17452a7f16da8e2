"""Instances and links together: what may be routed, what is news, what status shows."""

from __future__ import annotations

from typing import Any

from vdisagg.control import wire
from vdisagg.control.actions import Beat, Miss, Note, Pair
from vdisagg.control.fleet import Fleet
from vdisagg.control.lifecycle import Signal
from vdisagg.plan.model import Heartbeat

READY = wire.Ready(max_model_len=512, num_gpu_blocks=101, block_size=16, vllm_version="0.32.0")


def fleet_of(prefill: int = 1, decode: int = 1) -> Fleet:
    """Planned instances, beats every 10 s."""
    roles: dict[str, Any] = {f"p{i}": "prefill" for i in range(prefill)}
    roles |= {f"d{i}": "decode" for i in range(decode)}
    return Fleet.of(roles, Heartbeat(interval_s=10.0, misses=3, canary_tokens=8), now=0.5)


def launch(fleet: Fleet, *names: str, now: float = 1.0) -> None:
    """Bring instances up to ready."""
    for name in names:
        for signal in (Signal.LAUNCHED, Signal.HELLO, Signal.READY):
            fleet.signal(name, signal, now=now)
        fleet.engines[name].ready = READY


def beat(fleet: Fleet, link: Pair, now: float, matched: bool | None = True) -> list[Note]:
    """A probe's success."""
    return fleet.beat(Beat(link, 0.5, True, matched), now=now)


def up(prefill: int = 1, decode: int = 1) -> Fleet:
    """All ready, all links warm since 2.0."""
    fleet = fleet_of(prefill, decode)
    launch(fleet, *fleet.engines)
    for link in list(fleet.due(now=2.0)):
        beat(fleet, link, 2.0)
    return fleet


def test_every_prefill_is_linked_with_every_decode_instance() -> None:
    assert set(fleet_of(2, 2).links) == {("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1")}


def test_e05_no_link_is_probed_before_both_ends_are_ready() -> None:
    fleet = fleet_of(1, 2)
    launch(fleet, "p0", "d0")
    assert list(fleet.due(now=100.0)) == [("p0", "d0")]
    assert list(fleet.due(now=100.0)) == [], "each is asked for once"


def test_a_link_may_be_routed_when_a_probe_has_gone_all_the_way() -> None:
    fleet = fleet_of()
    launch(fleet, "p0", "d0")
    assert list(fleet.routable()) == []
    assert list(fleet.due(now=2.0)) == [("p0", "d0")]
    assert beat(fleet, ("p0", "d0"), 2.0) == [Note("p0→d0", "probing → warm")]
    assert list(fleet.routable()) == [("p0", "d0")]


def test_only_links_of_the_lost_instance_are_lost() -> None:
    fleet = up(2, 2)
    notes = fleet.signal("d0", Signal.DIED, now=3.0, reason="exit code 1")
    assert notes == [Note("d0", "ready → dead: exit code 1")]
    assert list(fleet.routable()) == [("p0", "d1"), ("p1", "d1")]
    assert fleet.links["p0", "d0"].reason == "d0 is dead"


def test_b07_an_instance_that_comes_back_is_proved_again() -> None:
    fleet = up()
    fleet.signal("d0", Signal.LOST, now=3.0)
    assert fleet.links["p0", "d0"].state == "cold"
    fleet.signal("d0", Signal.BACK, now=4.0)
    assert list(fleet.routable()) == []
    assert list(fleet.due(now=4.0)) == [("p0", "d0")]
    beat(fleet, ("p0", "d0"), 5.0)
    assert list(fleet.routable()) == [("p0", "d0")]


def test_a_signal_without_meaning_is_no_news() -> None:
    fleet = up()
    before = fleet.engines["d0"].life
    assert fleet.signal("d0", Signal.LAUNCHED, now=9.0) == []
    assert fleet.engines["d0"].life == before


def test_a_second_hello_while_loading_is_a_generation_and_no_news() -> None:
    fleet = fleet_of()
    for signal in (Signal.LAUNCHED, Signal.HELLO):
        fleet.signal("d0", signal, now=1.0)
    assert fleet.signal("d0", Signal.HELLO, now=2.0) == []
    assert fleet.engines["d0"].life.generation == 2


def test_probes_missed_take_a_link_out_of_routing_with_the_reason() -> None:
    fleet = up(1, 2)
    link = ("p0", "d0")
    notes: list[Note] = []
    for _ in range(3):
        notes += fleet.miss(Miss(link, True, "nothing came"), now=30.0)
    assert notes == [Note("p0→d0", "warm → stale: 3 probes missed: nothing came")]
    assert list(fleet.routable()) == [("p0", "d1")]


def test_a_users_failure_takes_no_link_out_but_has_it_probed_now() -> None:
    fleet = up()
    assert list(fleet.due(now=3.0)) == []
    assert fleet.miss(Miss(("p0", "d0"), False, "error"), now=3.0) == []
    assert list(fleet.routable()) == [("p0", "d0")]
    assert list(fleet.due(now=3.0)) == [("p0", "d0")]


def test_beat_now_makes_all_links_due() -> None:
    fleet = up(1, 2)
    fleet.beat_now(now=3.0)
    assert list(fleet.due(now=3.0)) == [("p0", "d0"), ("p0", "d1")]


def test_the_first_contact_has_a_longer_limit() -> None:
    fleet = up()
    assert fleet.probe_limits_s() == {("p0", "d0"): 10.0}
    fleet.signal("d0", Signal.HELLO, now=3.0)
    fleet.signal("d0", Signal.READY, now=3.0)
    assert fleet.probe_limits_s()["p0", "d0"] == 30.0


def test_a_step_s_statistics_are_counted_and_summed() -> None:
    engine = up().engines["d0"]
    moved = {"bytes_transferred": [1.0, 2.0], "num_kv_expired_reqs": [1.0]}
    for used in (0.5, 0.07):
        stats = wire.SchedulerStats(3, 4, used, wire.raw(moved))
        engine.note(stats, now=7.0)
    assert (engine.running, engine.waiting, engine.stats_at) == (3, 4, 7.0)
    assert engine.kv_blocks_used == 7, "usage is a share of 100: block 0 is the null block"
    assert (engine.transfers, engine.failures) == (4, 2)


def test_status_speaks_unix_time() -> None:
    fleet = up()
    fleet.engines["d0"].note(wire.SchedulerStats(1), now=7.0)
    prefill, decode = fleet.instance_status({"d0": 2}, to_unix=1000.0)
    assert (prefill.name, prefill.role, prefill.in_flight, prefill.stats_at) == (
        "p0",
        "prefill",
        0,
        None,
    )
    assert (decode.state, decode.since, decode.in_flight, decode.stats_at) == (
        "ready",
        1001.0,
        2,
        1007.0,
    )
    assert (decode.kv_blocks, decode.block_size, decode.max_model_len, decode.vllm_version) == (
        101,
        16,
        512,
        "0.32.0",
    )
    (link,) = fleet.link_status(to_unix=1000.0)
    assert (link.prefill, link.decode, link.state, link.last_beat, link.transfers) == (
        "p0",
        "d0",
        "warm",
        1002.0,
        1,
    )


def test_status_of_what_was_never_launched_is_plain() -> None:
    fleet = fleet_of()
    planned, _ = fleet.instance_status({}, to_unix=1000.0)
    assert (planned.state, planned.generation, planned.kv_blocks) == ("planned", 0, 0)
    assert planned.since == 1000.5
    (link,) = fleet.link_status(to_unix=1000.0)
    assert (link.state, link.last_beat) == ("cold", None)
