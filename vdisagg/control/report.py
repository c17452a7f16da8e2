"""The controller's answer to `status`: what fleet and dispatch know, as plain values."""

from __future__ import annotations

import os

from vdisagg.cluster import admin
from vdisagg.control.dispatch import Dispatch
from vdisagg.control.fleet import Fleet


def status(
    fleet: Fleet,
    dispatch: Dispatch,
    front_end: admin.FrontState,
    *,
    started: float,
    to_unix: float,
) -> admin.ControllerStatus:
    """`started`: Unix time; `to_unix`: what to add to the controller's clock to get Unix time."""
    counts = dispatch.counts
    return admin.ControllerStatus(
        pid=os.getpid(),
        started=started,
        front_end=front_end,
        instances=fleet.instance_status(dispatch.in_flight, to_unix=to_unix),
        links=fleet.link_status(to_unix=to_unix),
        totals=admin.Totals(
            received=counts.received,
            in_flight=dispatch.users_in_flight,
            finished=counts.finished,
            failed=counts.failed,
            aborted=counts.aborted,
            redone=counts.redone,
            continued=counts.continued,
            alone=counts.alone,
            colocated=counts.colocated,
            output_tokens=counts.output_tokens,
            handles_held=dispatch.handles_held,
        ),
    )
