"""Instances and links together: what may be routed, what is news, what status shows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from vdisagg.control import wire
from vdisagg.control.actions import Beat, Miss, Note, Pair
from vdisagg.control.fleet import Fleet
from vdisagg.control.lifecycle import Life, Signal
from vdisagg.plan.model import Heartbeat

READY = wire.Ready(512, num_gpu_blocks=101, block_size=16, vllm_version="0.32.0", max_num_seqs=4)
LINK = ("p0", "d0")


def fleet_of(prefill: int = 1, decode: int = 1) -> Fleet:
    """Planned instances, beats every 10 s, of which three may be missed."""
    roles: dict[str, Any] = {f"p{i}": "prefill" for i in range(prefill)}
    roles |= {f"d{i}": "decode" for i in range(decode)}
    heartbeat = Heartbeat(interval_s=10.0, misses=3, canary_tokens=8)
    return Fleet.of(roles, heartbeat, now=0.5, rng=random.Random(0))


def launch(fleet: Fleet, *names: str, now: float = 1.0) -> None:
    """Bring instances up to ready."""
    for name in names:
        for signal in (Signal.LAUNCHED, Signal.HELLO, Signal.READY):
            fleet.signal(name, signal, now=now)
        fleet.engines[name].ready = READY


def due(fleet: Fleet, now: float) -> list[Pair]:
    """The links to be probed now."""
    return [pair for pair, _ in fleet.due(now=now)]


def beat(fleet: Fleet, link: Pair, now: float, matched: bool | None = True) -> list[Note]:
    """A probe's success."""
    return fleet.beat(Beat(link, 0.05, True, matched), now=now)


def prove(fleet: Fleet, link: Pair, now: float, matched: bool | None = True) -> list[Note]:
    """A proof's end."""
    reason = "" if matched else "token 1 of 8 is 7"
    return fleet.beat(Beat(link, 0.05, True, matched, proof=True, reason=reason), now=now)


def up(prefill: int = 1, decode: int = 1) -> Fleet:
    """All ready, all links warm since 2.0."""
    fleet = fleet_of(prefill, decode)
    launch(fleet, *fleet.engines)
    for link in due(fleet, 2.0):
        prove(fleet, link, 2.0)
    return fleet


def test_every_prefill_is_linked_with_every_decode_instance() -> None:
    assert set(fleet_of(2, 2).links) == {("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1")}


def test_e05_no_link_is_probed_before_both_ends_are_ready() -> None:
    fleet = fleet_of(1, 2)
    launch(fleet, "p0", "d0")
    assert list(fleet.due(now=100.0)) == [(("p0", "d0"), True)]
    assert list(fleet.due(now=100.0)) == [], "each is asked for once"


def test_a_link_may_be_routed_when_a_proof_has_passed() -> None:
    fleet = fleet_of()
    launch(fleet, "p0", "d0")
    assert list(fleet.routable()) == []
    assert list(fleet.due(now=2.0)) == [(("p0", "d0"), True)]
    assert beat(fleet, ("p0", "d0"), 2.0) == []
    assert prove(fleet, ("p0", "d0"), 2.0) == [Note("p0→d0", "probing → warm")]
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
    assert list(fleet.due(now=4.0)) == [(("p0", "d0"), True)]
    prove(fleet, ("p0", "d0"), 5.0)
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
    assert due(fleet, 5.0) == []
    assert fleet.miss(Miss(("p0", "d0"), False, "error"), now=5.0) == []
    assert list(fleet.routable()) == [("p0", "d0")]
    assert list(fleet.due(now=5.0)) == [(("p0", "d0"), False)]


def test_beat_now_makes_all_links_due() -> None:
    fleet = up(1, 2)
    fleet.beat_now(now=3.0)
    assert due(fleet, 3.0) == [("p0", "d0"), ("p0", "d1")]


def test_beats_are_spread_over_the_last_fifth_of_the_interval() -> None:
    fleet = up(4, 4)
    beats = sorted(link.due - 2.0 for link in fleet.links.values())
    assert 8.0 <= beats[0] < beats[-1] - 1.0 <= 9.0


def test_a_failed_proof_takes_a_link_down_loudly_and_others_stay() -> None:
    fleet = up(1, 2)
    assert fleet.beat(Beat(LINK, 0.05, False, False), now=3.0)[0].what.startswith("warm → probing")
    assert list(fleet.routable()) == [("p0", "d1")]
    assert list(fleet.due(now=3.0)) == [(LINK, True)]
    said = "probing → down: decode does not read what prefill wrote: token 1 of 8 is 7"
    assert prove(fleet, LINK, 4.0, matched=False) == [Note("p0→d0", said)]
    for now in (20.0, 40.0):
        assert (LINK, True) in list(fleet.due(now=now))
        assert prove(fleet, LINK, now) == []
    assert prove(fleet, LINK, 60.0) == [Note("p0→d0", "down → warm")]
    assert LINK in fleet.routable()


def test_a_proof_that_could_not_be_compared_is_none() -> None:
    fleet = fleet_of()
    launch(fleet, "p0", "d0")
    assert due(fleet, 2.0) == [LINK]
    assert prove(fleet, LINK, 2.5, matched=None) == []
    assert (fleet.links[LINK].state, fleet.links[LINK].missed) == ("probing", 1)


# -- silence ---------------------------------------------------------------------------------------


def test_an_engine_that_owes_an_answer_and_says_nothing_for_the_limit_is_suspected_once() -> None:
    fleet = up()
    assert not fleet.heard("d0", now=10.0)
    assert fleet.silent(now=39.9, waiting_since={"d0": 5.0}) == []
    told = fleet.silent(now=40.0, waiting_since={"d0": 5.0})
    assert told == [("d0", "it has said nothing for 30.0 s")]
    assert fleet.silent(now=41.0, waiting_since={"d0": 5.0}) == []


def test_an_engine_that_owes_nothing_or_not_for_long_is_not_silent() -> None:
    fleet = up()
    fleet.heard("d0", now=10.0)
    assert fleet.silent(now=1000.0, waiting_since={"d0": 990.0}) == []
    assert fleet.silent(now=1000.0, waiting_since={}) == []


@pytest.mark.parametrize("given_up", [False, True])
def test_a_silent_engine_is_back_when_it_speaks_also_when_it_was_given_up(given_up: bool) -> None:
    fleet = up()
    ((name, reason),) = fleet.silent(now=100.0, waiting_since={"d0": 5.0})
    fleet.signal(name, Signal.LOST, now=100.0, reason=reason)
    if given_up:
        fleet.signal(name, Signal.DIED, now=105.0)
    assert list(fleet.routable()) == []
    assert fleet.heard("d0", now=106.0)
    assert not fleet.heard("d0", now=106.0), "once"
    (note,) = fleet.signal("d0", Signal.BACK, now=106.0)
    assert note.what == f"{'dead' if given_up else 'suspect'} → ready"
    assert list(fleet.due(now=106.0)) == [(LINK, True)], "proved again before it is used"


def test_an_engine_whose_connections_are_gone_is_not_back_by_a_word() -> None:
    fleet = up()
    fleet.signal("d0", Signal.LOST, now=10.0)
    assert not fleet.heard("d0", now=11.0)


def test_what_an_engine_said_is_void_when_another_takes_its_place() -> None:
    fleet = up()
    fleet.engines["d0"].note(wire.SchedulerStats(9, 9, 0.99), now=7.0)
    assert fleet.full("d0")
    fleet.silent(now=100.0, waiting_since={"d0": 5.0})
    fleet.signal("d0", Signal.HELLO, now=101.0)
    assert not fleet.full("d0")
    assert not fleet.heard("d0", now=102.0)


def test_our_own_pause_is_nobodys_silence() -> None:
    fleet = up()
    fleet.heard("d0", now=10.0)
    fleet.signal("p0", Signal.LOST, now=10.0)
    fleet.paused(100.0)
    assert fleet.silent(now=139.9, waiting_since={"d0": 105.0}) == []
    assert fleet.silent(now=140.0, waiting_since={"d0": 105.0}) != []
    assert fleet.engines["p0"].life.since == 110.0


# -- probes that are late --------------------------------------------------------------------------


def probed(now: float = 20.0) -> Fleet:
    """A warm link with a probe out since `now`."""
    fleet = up()
    assert due(fleet, now) == [LINK]
    return fleet


def test_a_probe_is_late_after_an_interval_and_the_first_one_after_longer() -> None:
    fleet = probed()
    assert fleet.late(now=29.9, probes={LINK: ("d0", 20.0)}) == []
    assert fleet.late(now=30.0, probes={LINK: ("d0", 20.0)}) == [LINK]
    first = fleet_of()
    launch(first, "p0", "d0")
    assert due(first, 2.0) == [LINK]
    assert first.late(now=31.9, probes={LINK: ("p0", 2.0)}) == []
    assert first.late(now=32.0, probes={LINK: ("p0", 2.0)}) == [LINK]


def test_e05_a_probe_behind_a_long_prefill_is_excused_as_long_as_the_engine_says_something() -> (
    None
):
    fleet = probed()
    for now in range(20, 120, 5):
        fleet.heard("p0", now=now)
        assert fleet.late(now=now + 4.9, probes={LINK: ("p0", 20.0)}) == []
        assert fleet.tick(now=now + 4.9) == []
    assert fleet.late(now=126.0, probes={LINK: ("p0", 20.0)}) == [LINK]


def test_of_a_probe_that_was_excused_only_the_time_behind_other_work_does_not_count() -> None:
    fleet = probed(40.0)
    for now in (41.0, 42.0, 43.0):
        fleet.heard("p0", now=now)
        assert fleet.late(now=now, probes={LINK: ("p0", 40.0)}) == []
    fleet.heard("d0", now=60.0)
    assert fleet.late(now=60.0, probes={LINK: ("d0", 59.0)}) == []
    assert fleet.tick(now=62.9) == []
    assert [note.subject for note in fleet.tick(now=63.0)] == ["p0→d0"], "3 s of 23 were excused"


def test_a_transfer_that_does_not_end_is_late_whatever_decode_says_meanwhile() -> None:
    fleet = probed()
    fleet.heard("d0", now=29.0)
    assert fleet.late(now=30.0, probes={LINK: ("d0", 20.0)}) == [LINK]


@pytest.mark.parametrize(
    "stats",
    [wire.SchedulerStats(4, 1), wire.SchedulerStats(1, 0, kv_cache_usage=0.95)],
    ids=["no place", "no blocks"],
)
def test_a_probe_that_waits_for_a_place_at_a_full_decode_engine_is_excused(
    stats: wire.SchedulerStats,
) -> None:
    fleet = probed()
    fleet.heard("d0", now=29.0)
    fleet.engines["d0"].note(stats, now=29.0)
    assert fleet.late(now=30.0, probes={LINK: ("d0", 20.0)}) == []
    assert fleet.late(now=39.1, probes={LINK: ("d0", 20.0)}) == [LINK], "silent since"


def test_a_probe_does_not_fill_an_engine_for_itself() -> None:
    fleet = probed()
    fleet.in_flight = {"d0": 4}
    fleet.heard("d0", now=29.0)
    assert fleet.late(now=30.0, probes={LINK: ("d0", 20.0)}) == [LINK]


def test_an_engine_tells_how_many_it_runs_at_once_and_whether_it_has_blocks_left() -> None:
    fleet = up()
    assert fleet.slots("d0") == 4
    assert not fleet.full("d0")
    fleet.engines["d0"].note(wire.SchedulerStats(kv_cache_usage=0.95), now=3.0)
    assert fleet.full("d0")
    fleet.engines["d0"].ready = None
    assert fleet.slots("d0") == 0, "not known"


def test_a_link_is_stale_at_the_limit_after_its_last_beat_when_nothing_answers() -> None:
    fleet = up()
    beaten = 2.0
    assert due(fleet, 12.0) == [LINK]
    assert fleet.tick(now=beaten + 29.9) == []
    (note,) = fleet.tick(now=beaten + 30.0)
    assert note == Note("p0→d0", "warm → stale: no beat for 30.0 s")
    assert list(fleet.routable()) == []


def test_an_idle_link_does_not_age() -> None:
    fleet = up()
    assert fleet.tick(now=1e6) == []
    assert list(fleet.routable()) == [LINK]


# -- what engines report of their transfers --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("d0", "num_failed_transfers"),
        ("d0", "num_failed_handshakes"),
        ("p0", "num_failed_notifications"),
        ("p0", "num_kv_expired_reqs"),
    ],
)
def test_failures_that_an_engine_reports_have_its_links_probed_now(name: str, event: str) -> None:
    fleet = up(2, 2)
    stats = wire.SchedulerStats(kv_connector_stats=wire.raw({event: [1.0]}))
    assert due(fleet, 5.0) == []
    fleet.engines[name].note(stats, now=5.0)
    probes = due(fleet, 5.0) + due(fleet, 6.0)
    assert sorted(probes) == [pair for pair in sorted(fleet.links) if name in pair]
    assert list(fleet.routable()) != [], "they are probed, not condemned"


def test_expired_leases_are_counted_apart() -> None:
    fleet = up()
    moved = {"num_kv_expired_reqs": [1.0, 1.0], "num_failed_transfers": [1.0]}
    fleet.engines["p0"].note(wire.SchedulerStats(kv_connector_stats=wire.raw(moved)), now=5.0)
    assert fleet.expired("p0") == 2
    prefill, _ = fleet.instance_status({}, to_unix=0.0)
    assert (prefill.kv_expiries, prefill.kv_failures) == (2, 1)


# -- a controller after another --------------------------------------------------------------------


def restored() -> Fleet:
    """What a new controller knows of one instance of each role that were at work."""
    fleet = fleet_of()
    for name in ("p0", "d0"):
        fleet.restore(name, 3, READY, now=10.0)
    fleet.restore_link(LINK, now=10.0)
    return fleet


def test_restored_instances_are_used_again_when_they_are_connected_without_a_new_proof() -> None:
    fleet = restored()
    engine = fleet.engines["d0"]
    assert engine.life == Life("suspect", 10.0, 3, "adopted; not heard yet")
    assert (list(fleet.routable()), due(fleet, 11.0), fleet.hopeful()) == ([], [], True)
    fleet.signal("p0", Signal.BACK, now=11.0)
    assert (list(fleet.routable()), fleet.links[LINK].state) == ([], "warm")
    fleet.signal("d0", Signal.BACK, now=12.0)
    assert list(fleet.routable()) == [LINK]
    assert list(fleet.due(now=12.0)) == [(LINK, False)]


def test_a_restored_instance_that_does_not_come_is_lost_and_its_links_with_it() -> None:
    fleet = restored()
    fleet.signal("p0", Signal.BACK, now=11.0)
    fleet.signal("d0", Signal.DIED, now=15.0)
    assert fleet.links[LINK].state == "cold"
    fleet.signal("d0", Signal.BACK, now=20.0)
    assert list(fleet.due(now=20.0)) == [(LINK, True)]


def test_an_instance_that_was_loading_under_the_controller_before_is_connected() -> None:
    fleet = fleet_of()
    fleet.restore("d0", 3, None, now=10.0)
    assert fleet.engines["d0"].life == Life("connected", 10.0, 3)
    fleet.signal("d0", Signal.READY, now=11.0)
    assert fleet.working_decode() == ["d0"]


# -- answers -----------------------------------------------------------------------------------------


def test_ready_decode_instances_can_work_alone() -> None:
    fleet = up(2, 2)
    assert fleet.working_decode() == ["d0", "d1"]
    fleet.signal("d0", Signal.LOST, now=3.0)
    assert fleet.working_decode() == ["d1"]


def test_ready_instances_of_either_role_can_work_alone_whatever_their_links() -> None:
    fleet = up(1, 2)
    assert fleet.working() == ["p0", "d0", "d1"]
    assert not fleet.awaited()
    fleet.signal("p0", Signal.LOST, now=3.0)
    assert (fleet.working(), fleet.awaited()) == (["d0", "d1"], True)
    fleet.signal("p0", Signal.DIED, now=8.0)
    assert (fleet.working(), fleet.awaited()) == (["d0", "d1"], False)
    assert fleet.routable() == []


def test_there_is_hope_while_a_link_is_proved_or_an_end_may_be_back() -> None:
    fleet = up()
    fleet.signal("d0", Signal.LOST, now=3.0)
    assert fleet.hopeful()
    fleet.signal("d0", Signal.DIED, now=8.0)
    assert not fleet.hopeful()
    fleet.signal("d0", Signal.BACK, now=9.0)
    assert fleet.hopeful()
    prove(fleet, LINK, 10.0, matched=False)
    assert not fleet.hopeful()


def test_why_no_link_works_is_told_by_role_or_by_link() -> None:
    fleet = up(2, 1)
    prove(fleet, ("p0", "d0"), 3.0, matched=False)
    fleet.signal("p1", Signal.DIED, now=4.0, reason="exit code 1")
    assert fleet.why_no_link() == (
        "no link works: p0→d0 is down: decode does not read what prefill wrote: token 1 of 8 is 7"
    )
    fleet.signal("p0", Signal.LOST, now=5.0)
    assert (
        fleet.why_no_link() == "no prefill engine is ready: p0 is suspect; p1 is dead: exit code 1"
    )


def test_a_step_s_statistics_are_counted_and_summed() -> None:
    engine = up().engines["d0"]
    moved = {"bytes_transferred": [1.0, 2.0], "num_failed_transfers": [1.0]}
    for used in (0.5, 0.07):
        stats = wire.SchedulerStats(3, 4, used, wire.raw(moved))
        engine.note(stats, now=7.0)
    assert (engine.running, engine.waiting, engine.stats_at) == (3, 4, 7.0)
    assert engine.kv_blocks_used == 7, "usage is a share of 100: block 0 is the null block"
    assert (engine.transfers, engine.failures) == (4, 2)


def test_status_speaks_unix_time() -> None:
    fleet = up()
    fleet.heard("d0", now=8.0)
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
    assert (prefill.heard_at, decode.heard_at) == (None, 1008.0)
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
    assert (link.since, link.missed, link.failures, link.proofs) == (1002.0, 0, 0, 0)


def test_status_of_what_was_never_launched_is_plain() -> None:
    fleet = fleet_of()
    planned, _ = fleet.instance_status({}, to_unix=1000.0)
    assert (planned.state, planned.generation, planned.kv_blocks) == ("planned", 0, 0)
    assert planned.since == 1000.5
    (link,) = fleet.link_status(to_unix=1000.0)
    assert (link.state, link.last_beat) == ("cold", None)


def test_an_engine_with_a_tainted_prefix_cache_gets_no_requests_and_its_links_stay_warm() -> None:
    fleet = up(1, 2)
    (note,) = fleet.taint("d0")
    assert note == Note("d0", "takes no new requests until its prefix cache is empty")
    assert fleet.taint("d0") == []
    assert (fleet.routable(), fleet.working_decode()) == ([("p0", "d1")], ["d1"])
    assert fleet.working() == ["p0", "d1"]
    assert {link.state for link in fleet.links.values()} == {"warm"}
    assert fleet.hopeful(), "requests may wait for it"
    assert fleet.clean("d0") == [Note("d0", "its prefix cache is empty")]
    assert fleet.clean("d0") == []
    assert fleet.routable() == [("p0", "d0"), ("p0", "d1")]


def test_why_the_only_decode_engine_takes_nothing_is_told() -> None:
    fleet = up()
    fleet.taint("d0")
    assert fleet.why_no_link().endswith("; d0 has to empty its prefix cache first")


def test_another_engine_core_in_the_place_of_a_tainted_one_is_clean() -> None:
    fleet = up()
    fleet.taint("d0")
    launch(fleet, "d0", now=5.0)
    prove(fleet, LINK, 6.0)
    assert fleet.routable() == [LINK]
