"""What the controller of our own cluster can say of a run: loads, phases, versions.

A bench goes on without it: a controller that does not answer gives nothing, and `notes` says so once.
Each call asks over a Unix socket and waits for the answer, milliseconds as a rule, `timeout_s` at most.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

from vdisagg import __version__
from vdisagg.bench.request_ids import client_id
from vdisagg.bench.result import LoadPoint
from vdisagg.bench.samples import Phases
from vdisagg.cluster import admin
from vdisagg.errors import ControllerGone

TIMEOUT_S: Final = 1.0
END: Final = 1 << 62
"""No request has a higher number."""

Answer = TypeVar("Answer", admin.ControllerStatus, admin.Timings)


class Insight:
    """Asks the controller of the cluster whose state is in `directory`. No method raises."""

    def __init__(
        self, directory: Path, *, colocated: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`colocated`: the requests asked about are computed by one engine each."""
        self._directory = directory
        self._colocated = colocated
        self._timeout_s = timeout_s
        self._started = 0.0
        self._after = 0
        self._told = False
        self.notes: list[str] = []
        """What could not be had, a line each, each once."""

    def begin(self) -> None:
        """From now on: `phases` tells of requests that end after this. Call it when warm-up is over."""
        answer = self._ask(admin.Timings, "timings", after=END)
        if answer is not None:
            self._started, self._after = answer.started, answer.last

    def phases(self) -> dict[str, Phases]:
        """By X-Request-Id: the phases of the requests that have finished since `begin`, or since the last
        call. Where several of the front end's stand for one of the client's: of the last to end."""
        found: dict[str, Phases] = {}
        while (answer := self._ask(admin.Timings, "timings", after=self._after)) is not None:
            if answer.started != self._started:
                if self._started:
                    self._note("another controller took over: it has no phases from before")
                self._started, self._after = answer.started, 0
                continue
            if answer.dropped:
                self._note("the controller does not keep the phases of so many requests")
            for timing in answer.timings:
                found[client_id(timing.request)] = phases_of(timing)
                self._after = timing.number
            if not answer.timings or self._after >= answer.last:
                break
        found.pop("", None)
        return found

    def links(self) -> list[tuple[str, str]]:
        """The (prefill, decode) pairs that requests may take; prefill is empty where one engine does all."""
        status = self._status()
        if self._colocated:
            engines = status.instances if status is not None else []
            return [("", engine.name) for engine in engines if engine.state == "ready"]
        links = status.links if status is not None else []
        return [(link.prefill, link.decode) for link in links if link.state == "warm"]

    def load_points(self, at_s: float) -> list[LoadPoint]:
        """What each engine is doing now, `at_s` seconds after the load's start."""
        status = self._status()
        instances = status.instances if status is not None else []
        return [
            LoadPoint(
                at_s=at_s,
                instance=each.name,
                role=each.role,
                in_flight=each.in_flight,
                running=each.running,
                waiting=each.waiting,
                # Block 0 is vLLM's null block: usage is a share of the others.
                kv_usage=each.kv_blocks_used / max(1, each.kv_blocks - 1),
            )
            for each in instances
        ]

    def versions(self) -> dict[str, str]:
        """Ours as "vdisagg", and vLLM's by instance."""
        status = self._status()
        instances = status.instances if status is not None else []
        vllm = {each.name: each.vllm_version for each in instances if each.vllm_version}
        return {"vdisagg": __version__, **vllm}

    def _status(self) -> admin.ControllerStatus | None:
        return self._ask(admin.ControllerStatus, "status")

    def _ask(self, answer: type[Answer], op: str, *, after: int = 0) -> Answer | None:
        try:
            return admin.ask(self._directory, answer, op, after=after, timeout_s=self._timeout_s)
        except ControllerGone as exc:
            if not self._told:
                self._told = True
                self._note(f"not all that the controller could say of it: {exc}")
            return None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def phases_of(timing: admin.Timing) -> Phases:
    """One request's instants as the phases between them, which together are its whole time."""
    there_s = timing.end_s if timing.prefilled_s is None else timing.prefilled_s
    # Another clock's: it can't have waited for longer than it was there.
    queued_s = min(timing.engine_queue_s or 0.0, there_s - timing.sent_s)
    computing_s = timing.sent_s + queued_s
    if timing.prefilled_s is None:
        return Phases(
            prefill="",
            decode=timing.decode,
            queue_s=computing_s,
            prefill_s=None,
            transfer_s=None,
            decode_s=timing.end_s - computing_s,
        )
    return Phases(
        prefill=timing.prefill,
        decode=timing.decode,
        queue_s=computing_s,
        prefill_s=timing.prefilled_s - computing_s,
        transfer_s=timing.first_s - timing.prefilled_s,
        decode_s=timing.end_s - timing.first_s,
    )
