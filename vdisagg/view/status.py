"""How `vdisagg status` looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vdisagg.view.text import columns, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vdisagg.cluster.admin import LinkStatus
    from vdisagg.cluster.snapshot import ClusterView, ProcessView


WIDTH = 100
"""Characters; longer details go on in further lines."""


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
    return columns(rows, width=WIDTH)


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
        "; ".join(filter(None, (process.detail, *_notes(process)))),
    )


def _notes(process: ProcessView) -> Iterator[str]:
    """What else is worth a word of an engine: only what there is any of."""
    instance = process.instance
    if instance is None:
        return
    if process.observation.state == "never" and instance.generation > 1:
        yield f"generation {instance.generation}"  # of others their guards count the starts
    if instance.kv_failures:
        yield f"{_count(instance.kv_failures, 'KV transfer')} failed"
    if instance.kv_expiries:
        yield f"{_count(instance.kv_expiries, 'lease')} of KV blocks ran out"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _links(view: ClusterView, now: float) -> list[str]:
    instances = {p.name: p.instance for p in view.processes if p.instance is not None}
    rows = [
        (
            *("LINK", "STATE", "LAST BEAT", "LATENCY"),
            *("TRANSFERS", "FAILED", "MISMATCHES", "EXPIRED", "DETAIL"),
        )
    ]
    for link in view.links:
        prefill = instances.get(link.prefill)
        rows.append(
            (
                f"{link.prefill}→{link.decode}",
                link.state,
                f"{duration(now - link.last_beat)} ago" if link.last_beat is not None else "never",
                f"{link.latency_s * 1000:.0f} ms" if link.latency_s is not None else "",
                str(link.transfers),
                str(link.failures),
                str(link.mismatches),
                # A lease says which request it was of, but not which decode engine was to read it.
                str(prefill.kv_expiries) if prefill is not None else "",
                _about(link),
            )
        )
    return columns(rows, width=WIDTH)


def _about(link: LinkStatus) -> str:
    if link.state == "down" and link.proofs:
        return f"{link.reason}; proofs in a row since: {link.proofs}"
    return link.reason


def _totals(view: ClusterView) -> str:
    totals = view.totals
    assert totals is not None
    saved = [
        f"{number} {what}"
        for number, what in (
            (totals.redone, "redone"),
            (totals.continued, "continued elsewhere"),
            (totals.alone, "computed by decode alone"),
        )
        if number
    ]
    lines = [
        f"requests: {totals.in_flight} in flight, {totals.finished} finished, "
        f"{totals.failed} failed, {totals.aborted} aborted; {totals.output_tokens} output tokens; "
        f"{totals.handles_held} KV hand-overs held"
    ]
    if totals.colocated:
        lines.append(f"colocated, as their clients asked: {totals.colocated}")
    if saved:
        lines.append(f"after failures: {', '.join(saved)}")
    return "\n".join(lines)
