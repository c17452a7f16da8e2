"""Requests that are held since decode engines have enough to do, when all links are gone for a moment."""

from __future__ import annotations

from control.test_dispatch import Desk
from control.test_failover import replies
from fakes.messages import request, sends
from vdisagg.control.flights import HOPE_S


def test_a_request_that_was_long_in_the_queue_waits_for_a_lost_engine_as_long_as_others() -> None:
    """How long it has been waiting for a place says nothing of how long there has been no way."""
    desk = Desk()
    desk.ways.slots_each = 1
    desk.decoding()
    desk.dispatch.add(0, request("ahead"), (), now=3.0)  # one more may go ahead of decode
    assert desk.dispatch.add(0, request("queued"), (), now=3.0) == []
    late = 3.0 + HOPE_S + 1
    assert replies(desk.dispatch.tick(now=late)) == []
    desk.links.clear()
    desk.ways.hope = True
    lost = desk.dispatch.instance_lost("d0", "cut", now=late, may_return=True)
    told = replies([*lost, *desk.dispatch.tick(now=late + 0.1)])
    assert "queued" not in [output.request_id for output in told]
    desk.links.append(("p0", "d0"))
    assert any("queued" in what for _, what in sends(desk.dispatch.links_changed(now=late + 1)))
