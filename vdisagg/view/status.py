"""How `vdisagg status` looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vdisagg.view.text import columns, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vdisagg.cluster.snapshot import ClusterView, ProcessView


def status_text(view: ClusterView, *, now: float) -> str:
    """The cluster for people: a headline, its processes, its links, and what is wrong."""
    if view.phase == "absent":
        return f"cluster {view.name}: {'; '.join(view.problems)}"
    lines = [_headline(view, now), "", *_processes(view.processes, now)]
    if view.links:
        lines += ["", *_links(view, now)]
    if view.totals is not None:
        lines += ["", _totals(view)]
    if view.problems:
        at_work = view.phase in ("starting", "stopping")
        heading = "not there yet:" if at_work else "what is wrong:"
        lines += ["", heading, *(f"  {problem}" for problem in view.problems)]
    return "\n".join(lines)


def status_json(view: ClusterView) -> str:
    """All that is known, as one JSON object."""
    return msgspec.json.format(msgspec.json.encode(view)).decode()


def _headline(view: ClusterView, now: float) -> str:
    well = "healthy" if view.healthy else "degraded" if view.phase == "up" else view.phase
    age = f", {duration(now - view.created)}" if view.created is not None else ""
    return f"cluster {view.name}: {well}{age}   {view.url}   model {view.model}"


def _processes(processes: Sequence[ProcessView], now: float) -> list[str]:
    rows = [
        ("NAME", "ROLE", "NODE", "STATE", "SINCE", "PID", "IN FLIGHT", "KV BLOCKS", "DETAIL"),
        *(_row(process, now) for process in processes),
    ]
    return columns(rows)


def _row(process: ProcessView, now: float) -> tuple[str, ...]:
    instance = process.instance
    running = process.observation.state == "running"
    return (
        process.name,
        process.kind.replace("_", " "),
        process.node,
        process.state,
        duration(now - process.since) if process.since is not None else "",
        str(process.observation.pid) if running else "",
        str(instance.in_flight) if instance is not None else "",
        f"{instance.kv_blocks_used}/{instance.kv_blocks}" if instance is not None else "",
        process.detail,
    )


def _links(view: ClusterView, now: float) -> list[str]:
    rows = [("LINK", "STATE", "LAST BEAT", "LATENCY", "TRANSFERS", "MISMATCHES", "DETAIL")]
    rows += [
        (
            f"{link.prefill}→{link.decode}",
            link.state,
            f"{duration(now - link.last_beat)} ago" if link.last_beat is not None else "never",
            f"{link.latency_s * 1000:.0f} ms" if link.latency_s is not None else "",
            str(link.transfers),
            str(link.mismatches),
            link.reason,
        )
        for link in view.links
    ]
    return columns(rows)


def _totals(view: ClusterView) -> str:
    totals = view.totals
    assert totals is not None
    return (
        f"requests: {totals.in_flight} in flight, {totals.finished} finished, "
        f"{totals.failed} failed, {totals.aborted} aborted; {totals.output_tokens} output tokens; "
        f"{totals.handles_held} KV hand-overs held"
    )
