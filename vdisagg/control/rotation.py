"""Which of the links that are due may be probed now, so that probes stay cheap for every engine.

An engine is probed once a pace at most, and more often only as far as its probes take no more than
SHARE of its time. What has to wait takes turns: the link that is overdue for longest goes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from vdisagg.control.actions import Pair
from vdisagg.control.engine import Engine
from vdisagg.control.link import Link, Urgency

SHARE: Final = 0.019
"""Of an engine's time, for probes. A probe's whole latency counts, at both its ends: more than it
takes of either."""

CREDIT: Final = 8
"""Probes that an engine may be behind with, and catch up. Without it the two ends of a link would hardly
ever be free at once, and some links would wait for ever."""

PATIENCE: Final = 0.5
"""Paces that a link may be overdue before what is free of its ends is kept for it. With both, a turn of
16 × 16 links takes as long as the share allows for, and none waits longer."""


def in_turn(links: Mapping[Pair, Link], *, now: float) -> list[Pair]:
    """The links that are due, in the order in which they go."""
    due = [
        (-link.urgency, link.due, pair) for pair, link in links.items() if link.probe_due(now=now)
    ]
    return [pair for *_, pair in sorted(due)]


def admitted(
    pairs: Sequence[Pair],
    links: Mapping[Pair, Link],
    engines: Mapping[str, Engine],
    *,
    now: float,
    pace_s: float,
) -> Iterator[Pair]:
    """Those of `pairs` that may be probed now, both ends being free; their engines are then busy.

    Exempt are first proofs, without which a link is of no use, and what somebody has asked for.
    """
    kept: set[str] = set()
    for pair in pairs:
        link = links[pair]
        ends = [engines[name] for name in pair]
        if not all(end.life.routable for end in ends) or not link.probe_due(now=now):
            continue
        exempt = link.state == "probing" or link.urgency is Urgency.DEMANDED
        if not exempt and any(end.probe_at > now or end.name in kept for end in ends):
            if now - link.due > PATIENCE * pace_s:
                kept.update(pair)
            continue
        rest_s = pace_s if link.probe_s is None else min(pace_s, link.probe_s / SHARE)
        for end in () if exempt else ends:
            end.probe_at = max(end.probe_at, now - CREDIT * rest_s) + rest_s
        yield pair
