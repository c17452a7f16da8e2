"""A link's beats: when a probe is due, and what its success, its failure and its tokens say."""

from __future__ import annotations

from typing import Any

import pytest

from vdisagg.control.link import FIRST_CONTACT_S, MISMATCHES, Link

INTERVAL = 10.0
WARM = Link("warm", last_beat=100.0, due=110.0, transfers=1, latency_s=0.5)


def beat(link: Link, now: float, **changes: Any) -> Link:
    """A success, a matching probe's unless said otherwise."""
    how = {"latency_s": 0.5, "interval_s": INTERVAL, "probe": True, "matched": True, **changes}
    return link.succeeded(now=now, **how)


def miss(link: Link, now: float) -> Link:
    """A missed probe, of three that make a link stale."""
    return link.missed_beat(now=now, interval_s=INTERVAL, misses=3, reason="too late")


def test_a_link_is_probed_first_and_warm_after_one_success() -> None:
    cold = Link()
    assert not cold.probe_due(now=1e9)
    probing = cold.ends_ready(now=5.0)
    assert (probing.state, probing.routable) == ("probing", False)
    assert probing.probe_due(now=5.0)
    sent = probing.probe_sent()
    assert not sent.probe_due(now=1e9), "there is never a second probe"
    warm = beat(sent, 6.0)
    assert warm == Link("warm", last_beat=6.0, due=16.0, transfers=1, latency_s=0.5)
    assert warm.routable


def test_an_idle_link_is_probed_after_the_interval_and_a_users_success_puts_it_off() -> None:
    assert not WARM.probe_due(now=109.9)
    assert WARM.probe_due(now=110.0)
    used = beat(WARM, 105.0, probe=False, latency_s=0.25)
    assert (used.due, used.latency_s, used.transfers) == (115.0, 0.25, 2)


def test_a_users_success_leaves_a_probe_under_way_under_way() -> None:
    assert beat(WARM.probe_sent(), 105.0, probe=False).probing
    assert not beat(WARM.probe_sent(), 105.0).probing


def test_misses_in_a_row_make_a_warm_link_stale_and_a_success_makes_it_warm_again() -> None:
    link = WARM
    for missed in (1, 2):
        link = miss(link.probe_sent(), 120.0)
        assert (link.state, link.missed) == ("warm", missed)
    stale = miss(link.probe_sent(), 120.0)
    assert (stale.state, stale.routable) == ("stale", False)
    assert stale.reason == "3 probes missed: too late"
    healed = beat(stale.probe_sent(), 130.0)
    assert (healed.state, healed.missed, healed.reason) == ("warm", 0, "")


def test_a_success_between_misses_starts_the_count_again() -> None:
    link = miss(miss(WARM, 120.0), 121.0)
    link = miss(miss(beat(link, 122.0, probe=False), 123.0), 124.0)
    assert (link.state, link.missed) == ("warm", 2)


@pytest.mark.parametrize(("interval", "due"), [(10.0, 121.0), (0.2, 120.2)])
def test_after_a_miss_the_next_probe_is_due_within_a_second(interval: float, due: float) -> None:
    link = WARM.missed_beat(now=120.0, interval_s=interval, misses=3, reason="")
    assert link.due == due


def test_misses_before_the_first_success_leave_a_link_unproved() -> None:
    link = Link().ends_ready(now=0.0)
    for _ in range(10):
        link = miss(link.probe_sent(), 50.0)
    assert (link.state, link.routable) == ("probing", False)


@pytest.mark.parametrize(
    "unproved",
    [Link("probing", due=3.0, probing=True), Link("stale", due=3.0, missed=3, reason="why")],
    ids=["probing", "stale"],
)
def test_a_users_success_proves_no_unproved_link_and_puts_no_probe_off(unproved: Link) -> None:
    link = beat(unproved, 2.0, probe=False)
    assert (link.state, link.routable) == (unproved.state, False)
    assert (link.due, link.probing, link.reason) == (3.0, unproved.probing, unproved.reason)


@pytest.mark.parametrize("state", ["probing", "stale"])
def test_mismatches_in_a_row_make_an_unproved_link_down(state: Any) -> None:
    link = Link(state)
    for count in range(1, MISMATCHES):
        link = beat(link.probe_sent(), 5.0, matched=False)
        assert (link.state, link.mismatched, link.due) == (state, count, 5.0)
    down = beat(link.probe_sent(), 6.0, matched=False)
    assert (down.state, down.routable, down.mismatches) == ("down", False, MISMATCHES)
    assert "does not arrive intact" in down.reason
    assert not down.probe_due(now=1e9)


def test_a_match_between_mismatches_proves_the_link() -> None:
    link = Link("probing")
    for _ in range(MISMATCHES - 1):
        link = beat(link, 5.0, matched=False)
    assert beat(link, 6.0).state == "warm"
    assert beat(link, 6.0).mismatched == 0


@pytest.mark.parametrize("probe", [True, False])
def test_a_mismatch_on_a_warm_link_is_counted(probe: bool) -> None:
    """Greedy tokens can differ by rounding at a near-tie."""
    link = WARM
    for _ in range(2 * MISMATCHES):
        link = beat(link, 105.0, probe=probe, matched=False)
    assert (link.state, link.mismatches) == ("warm", 2 * MISMATCHES)


def test_what_cannot_be_compared_is_a_success() -> None:
    assert beat(Link("probing"), 5.0, matched=None).state == "warm"


@pytest.mark.parametrize("state", ["cold", "down"])
def test_what_is_still_said_of_a_dead_link_changes_nothing(state: Any) -> None:
    link = Link(state, probing=True, reason="why")
    assert beat(link, 5.0) == Link(state, probing=False, reason="why")
    assert miss(link, 5.0) == Link(state, probing=False, reason="why")


def test_a_lost_end_makes_a_link_cold_and_a_new_one_starts_from_nothing_but_totals() -> None:
    lost = miss(WARM, 120.0).probe_sent().end_lost("d0 is dead")
    assert (lost.state, lost.probing, lost.reason) == ("cold", False, "d0 is dead")
    assert lost.ends_ready(now=130.0) == Link("probing", due=130.0, transfers=1)


def test_a_users_failure_makes_the_next_probe_due_at_once() -> None:
    assert WARM.suspected(now=101.0).probe_due(now=101.0)
    assert not WARM.probe_sent().suspected(now=101.0).probe_due(now=101.0)


def test_the_first_contact_may_take_longer_than_a_beat() -> None:
    link = Link().ends_ready(now=0.0)
    assert link.probe_limit_s(INTERVAL) == FIRST_CONTACT_S
    assert beat(link, 1.0).probe_limit_s(INTERVAL) == INTERVAL
