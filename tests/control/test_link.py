"""A link's beats and proofs: when a probe is due, and what its success, failure and tokens say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from vdisagg.control.link import FIRST_CONTACT_S, PROOFS, Link, Urgency, pace_s
from vdisagg.plan.model import Heartbeat

HEARTBEAT = Heartbeat(interval_s=10.0, misses=3, canary_tokens=8)
WARM = Link("warm", 50.0, last_beat=100.0, due=110.0, transfers=1, latency_s=0.5, probe_s=0.5)
DOWN = Link("down", 90.0, last_beat=80.0, due=110.0, reason="decode does not read …")


def beat(link: Link, now: float, **changes: Any) -> Link:
    """A success, a matching probe's unless said otherwise; the next is due in 9 s."""
    how = {"next_due": now + 9, "latency_s": 0.5, "probe": True, "matched": True, **changes}
    return link.succeeded(now=now, **how)


def user(link: Link, now: float, matched: bool | None = True) -> Link:
    """A user's success."""
    return beat(link, now, probe=False, matched=matched, latency_s=0.25)


def proved(link: Link, now: float) -> Link:
    """A proof that passes."""
    return link.proved(now=now, next_due=now + 9, latency_s=0.5)


def refuted(link: Link, now: float) -> Link:
    """A proof that fails."""
    return link.refuted(now=now, next_due=now + 9, reason="token 1 of 8 is 7")


def miss(link: Link, now: float, reason: str = "too late") -> Link:
    """A missed probe, of three that make a link stale."""
    return link.missed_beat(now=now, next_due=now + 9, heartbeat=HEARTBEAT, reason=reason)


def aged(link: Link, now: float) -> Link:
    """Time has passed; the limit is 30 s."""
    return link.aged(now=now, heartbeat=HEARTBEAT)


def test_a_new_link_is_used_after_a_proof_and_not_before() -> None:
    cold = Link()
    assert not cold.probe_due(now=1e9)
    probing = cold.ends_ready(now=5.0)
    assert (probing.state, probing.routable, probing.wants_proof) == ("probing", False, True)
    assert probing.probe_due(now=5.0)
    sent = probing.probe_sent(now=5.0)
    assert not sent.probe_due(now=1e9), "there is never a second probe"
    warm = proved(sent, 6.0)
    expected = Link("warm", 6.0, last_beat=6.0, due=15.0, transfers=1, latency_s=0.5, probe_s=0.5)
    assert warm == expected
    assert (warm.routable, warm.wants_proof) == (True, False)


@pytest.mark.parametrize("probe", [True, False])
@pytest.mark.parametrize("state", ["cold", "probing", "down"])
def test_nothing_but_a_proof_proves(state: Any, probe: bool) -> None:
    link = beat(Link(state, 1.0, due=3.0, probing=True), 2.0, probe=probe)
    assert (link.state, link.since, link.due, link.last_beat) == (state, 1.0, 3.0, None)
    assert link.probing is not probe


def test_an_idle_link_is_probed_when_due_and_a_users_success_puts_it_off() -> None:
    assert not WARM.probe_due(now=109.9)
    assert WARM.probe_due(now=110.0)
    used = user(WARM, 105.0)
    assert (used.due, used.latency_s, used.probe_s, used.transfers) == (114.0, 0.25, 0.5, 2)


def test_a_users_success_leaves_a_probe_under_way_under_way() -> None:
    used = user(WARM.probe_sent(now=104.0), 105.0)
    assert (used.probing, used.asked) == (True, 105.0)
    assert not beat(WARM.probe_sent(now=104.0), 105.0).probing


def test_misses_in_a_row_make_a_warm_link_stale_and_a_beat_makes_it_warm_again() -> None:
    link = WARM
    for missed in (1, 2):
        link = miss(link.probe_sent(now=110.0), 111.0)
        assert (link.state, link.missed, link.due) == ("warm", missed, 112.0)
    stale = miss(link.probe_sent(now=112.0), 113.0)
    assert (stale.state, stale.since, stale.routable) == ("stale", 113.0, False)
    assert (stale.reason, stale.failures) == ("3 probes missed: too late", 3)
    assert not stale.wants_proof
    healed = beat(stale.probe_sent(now=114.0), 115.0)
    assert (healed.state, healed.since, healed.missed, healed.reason) == ("warm", 115.0, 0, "")


def test_a_success_between_misses_starts_the_count_again() -> None:
    link = miss(miss(WARM, 120.0), 121.0)
    link = miss(miss(user(link, 122.0), 123.0), 124.0)
    assert (link.state, link.missed) == ("warm", 2)


@pytest.mark.parametrize(("interval", "due"), [(10.0, 121.0), (0.2, 120.2)])
def test_after_a_miss_the_next_probe_is_due_within_a_second(interval: float, due: float) -> None:
    heartbeat = Heartbeat(interval_s=interval, misses=3, canary_tokens=8)
    link = WARM.missed_beat(now=120.0, next_due=129.0, heartbeat=heartbeat, reason="")
    assert link.due == due


def test_misses_leave_an_unproved_link_unproved_and_asked_again() -> None:
    link = Link().ends_ready(now=0.0)
    for _ in range(10):
        link = miss(link.probe_sent(now=50.0), 50.0)
    assert (link.state, link.routable, link.wants_proof, link.due) == ("probing", False, True, 51.0)


def test_a_late_users_success_does_not_make_a_stale_link_warm() -> None:
    stale = Link("stale", 1.0, due=3.0, missed=3, reason="why")
    link = user(stale, 2.0)
    assert (link.state, link.due, link.reason) == ("stale", 3.0, "why")


# -- time ------------------------------------------------------------------------------------------


def test_no_beat_for_the_limit_with_a_probe_out_makes_a_link_stale() -> None:
    sent = WARM.probe_sent(now=110.0)
    assert aged(sent, 129.9) == sent
    stale = aged(sent, 130.0)
    assert (stale.state, stale.since) == ("stale", 130.0)
    assert stale.reason == "no beat for 30.0 s"


def test_no_beat_for_the_limit_after_a_missed_probe_makes_a_link_stale() -> None:
    missed = miss(WARM.probe_sent(now=110.0), 120.0, reason="error")
    assert aged(missed, 129.9) == missed
    assert aged(missed, 130.0).reason == "no beat for 30.0 s; 1 probes missed: error"


def test_a_link_that_nobody_has_asked_is_not_stale() -> None:
    assert aged(WARM, 1e6) == WARM


def test_a_link_whose_turn_came_late_has_the_limit_less_a_pace_to_answer() -> None:
    sent = WARM.probe_sent(now=140.0)
    assert aged(sent, 159.9) == sent
    assert aged(sent, 160.0).state == "stale"


def test_a_beat_ends_the_wait_also_while_a_probe_is_out() -> None:
    sent = user(WARM.probe_sent(now=110.0), 129.0)
    assert aged(sent, 140.0).state == "warm"
    assert aged(sent, 159.0).state == "stale"


def test_the_time_of_our_own_pause_does_not_count() -> None:
    sent = WARM.probe_sent(now=110.0).paused(100.0)
    assert aged(sent, 229.9).state == "warm"
    assert aged(sent, 230.0).state == "stale"
    assert WARM.paused(100.0) == WARM


@pytest.mark.parametrize(("misses", "pace"), [(1, 5.0), (2, 10.0), (3, 10.0)])
def test_where_one_miss_is_enough_a_probe_goes_out_half_way_to_the_limit(
    misses: int, pace: float
) -> None:
    assert pace_s(Heartbeat(interval_s=10.0, misses=misses, canary_tokens=8)) == pace


@pytest.mark.parametrize("misses", [1, 2, 3, 7])
def test_death_is_noticed_at_the_limit_after_the_last_beat_whatever_the_misses(misses: int) -> None:
    heartbeat = Heartbeat(interval_s=10.0, misses=misses, canary_tokens=8)
    sent = WARM.probe_sent(now=100.0 + pace_s(heartbeat))
    limit = 100.0 + heartbeat.limit_s
    assert sent.aged(now=limit - 0.1, heartbeat=heartbeat).state == "warm"
    assert sent.aged(now=limit, heartbeat=heartbeat).state == "stale"


# -- truth -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("matched_by", [user, beat], ids=["user", "beat"])
@pytest.mark.parametrize("state", ["warm", "stale"])
def test_a_mismatch_takes_a_link_out_until_it_has_proved_itself(
    state: Any, matched_by: Any
) -> None:
    link = matched_by(replace(WARM, state=state), 105.0, matched=False)
    assert (link.state, link.since, link.due) == ("probing", 105.0, 105.0)
    assert (link.routable, link.wants_proof, link.mismatches) == (False, True, 1)
    assert "decode's first token was not prefill's" in link.reason
    warm = proved(link.probe_sent(now=105.0), 106.0)
    assert (warm.state, warm.reason, warm.mismatches) == ("warm", "", 1)


def test_a_probe_that_was_out_at_a_mismatch_is_no_proof() -> None:
    link = user(WARM.probe_sent(now=104.0), 105.0, matched=False)
    assert not link.probe_due(now=105.0), "one at a time"
    link = beat(link, 106.0)
    assert (link.state, link.probe_due(now=106.0), link.wants_proof) == ("probing", True, True)


def test_what_cannot_be_compared_is_a_beat() -> None:
    assert user(WARM, 105.0, matched=None).last_beat == 105.0


@pytest.mark.parametrize("state", ["probing", "warm", "stale"])
def test_a_failed_proof_takes_a_link_down_at_once_and_says_why(state: Any) -> None:
    down = refuted(replace(WARM, state=state, probing=True), 105.0)
    assert (down.state, down.since, down.due, down.routable) == ("down", 105.0, 114.0, False)
    assert (down.mismatches, down.failures) == (1, 1)
    assert down.reason == "decode does not read what prefill wrote: token 1 of 8 is 7"


def test_a_link_that_is_down_is_proved_on_and_needs_several_proofs_in_a_row() -> None:
    link = DOWN
    for passed in range(1, PROOFS):
        assert link.probe_due(now=1e9)
        assert link.wants_proof
        link = proved(link.probe_sent(now=110.0), 110.0)
        assert (link.state, link.since, link.proofs) == ("down", 90.0, passed)
        assert (link.reason, link.due) == (DOWN.reason, 119.0)
    warm = proved(link, 140.0)
    assert (warm.state, warm.since, warm.reason, warm.proofs) == ("warm", 140.0, "", 0)


@pytest.mark.parametrize("failing", [refuted, miss])
def test_any_failure_begins_the_row_of_proofs_again(failing: Any) -> None:
    link = failing(proved(proved(DOWN, 110.0), 119.0), 128.0)
    assert (link.state, link.since, link.proofs, link.due) == ("down", 90.0, 0, 137.0)
    assert "decode does not read" in link.reason
    for _ in range(PROOFS - 1):
        link = proved(link, 140.0)
    assert link.state == "down"
    assert proved(link, 150.0).state == "warm"


# -- ends, and wishes --------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [beat, user, proved, refuted, miss])
def test_what_is_still_said_of_a_cold_link_leaves_it_cold(late: Any) -> None:
    link = late(Link("cold", reason="why", probing=True), 5.0)
    assert (link.state, link.reason, link.last_beat) == ("cold", "why", None)


def test_a_lost_end_makes_a_link_cold_and_a_new_one_starts_from_nothing_but_totals() -> None:
    used = user(miss(WARM.probe_sent(now=119.0), 120.0), 120.5).probe_sent(now=121.0)
    lost = used.end_lost("d0 is dead", now=122.0)
    assert (lost.state, lost.since, lost.probing, lost.reason) == (
        "cold",
        122.0,
        False,
        "d0 is dead",
    )
    again = lost.ends_ready(now=130.0)
    assert again == Link("probing", 130.0, due=130.0, transfers=2, failures=1)


def test_a_users_failure_makes_the_next_probe_due_at_once() -> None:
    failed = WARM.failed(now=101.0)
    assert failed.probe_due(now=101.0)
    assert (failed.state, failed.failures, failed.urgency) == ("warm", 1, Urgency.SUSPECTED)
    assert not WARM.probe_sent(now=101.0).failed(now=101.0).probe_due(now=101.0)


def test_a_probe_that_was_asked_for_is_not_put_off_by_a_success() -> None:
    urged = WARM.urge(Urgency.DEMANDED, now=101.0)
    assert user(urged, 102.0).probe_due(now=102.0)
    sent = urged.probe_sent(now=102.0)
    assert (sent.urgency, beat(sent, 103.0).due) == (Urgency.IDLE, 112.0)


def test_an_urge_does_not_weaken_another_or_put_a_probe_off() -> None:
    urged = WARM.urge(Urgency.DEMANDED, now=101.0).urge(Urgency.SUSPECTED, now=105.0)
    assert (urged.urgency, urged.due) == (Urgency.DEMANDED, 101.0)


def test_the_first_contact_may_take_longer_than_a_beat() -> None:
    link = Link().ends_ready(now=0.0)
    assert link.probe_limit_s(HEARTBEAT) == FIRST_CONTACT_S
    assert proved(link, 1.0).probe_limit_s(HEARTBEAT) == 10.0


def test_a_restored_link_is_warm_due_and_no_first_contact() -> None:
    link = Link().restored(now=7.0)
    assert (link.state, link.since, link.routable) == ("warm", 7.0, True)
    assert link.probe_due(now=7.0)
    assert link.probe_limit_s(HEARTBEAT) == 10.0
    sent = link.probe_sent(now=7.0)
    assert (aged(sent, 36.9).state, aged(sent, 37.0).state) == ("warm", "stale")
