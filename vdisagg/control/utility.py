"""Utility calls: each goes to every engine, and the answers become one.

The front end believes that it talks to one engine. What it asks of that engine (tasks, LoRA adapters,
sleep, profiling, cache resets) must hold for all, so a call succeeds only when it succeeds everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from vdisagg.control import wire
from vdisagg.control.actions import Send

INTERSECTED: Final = frozenset({"get_supported_tasks", "list_loras"})
"""Methods whose answer is a collection: what only some engines have, the cluster does not have."""


@dataclass
class _Call:
    api: int
    call_id: int
    method: str
    waiting: set[str]
    failures: list[str] = field(default_factory=list)
    results: list[msgspec.Raw] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """A finished call: `output` goes to API server `api`."""

    api: int
    output: wire.UtilityOutput


class Calls:
    """The utility calls under way. Pure: messages in, messages out."""

    def __init__(self) -> None:
        self._next = 0
        self._calls: dict[int, _Call] = {}

    def call(
        self, api: int, payload: bytes, instances: Iterable[str]
    ) -> tuple[list[Send], list[Answer]]:
        """A UTILITY message from API server `api`, for all `instances`."""
        _, call_id, method, arguments = wire.decode_utility(payload)
        call = _Call(api, call_id, method, set(instances))
        if not call.waiting:
            call.failures.append("no engine is ready")
            return [], [_answer(call)]
        self._next += 1
        self._calls[self._next] = call
        message = wire.encode((0, self._next, method, arguments))
        return [Send(name, wire.UTILITY, message) for name in sorted(call.waiting)], []

    def answered(self, instance: str, output: wire.UtilityOutput) -> list[Answer]:
        """One engine's answer."""
        call = self._calls.get(output.call_id)
        if call is None or instance not in call.waiting:
            return []
        if output.failure_message is not None:
            call.failures.append(f"{instance}: {output.failure_message}")
        else:
            call.results.append(output.result)
        return self._settle(output.call_id, instance)

    def forget(self) -> None:
        """The front end is gone. Another one would fail on an answer to a call that it never made:
        vLLM's output handler ends there."""
        self._calls.clear()

    def lost(self, instance: str) -> list[Answer]:
        """An instance that will not answer any more."""
        answers: list[Answer] = []
        for number, call in list(self._calls.items()):
            if instance in call.waiting:
                call.failures.append(f"{instance}: the engine is gone")
                answers += self._settle(number, instance)
        return answers

    def _settle(self, number: int, instance: str) -> list[Answer]:
        call = self._calls[number]
        call.waiting.discard(instance)
        if call.waiting:
            return []
        del self._calls[number]
        return [_answer(call)]


def _answer(call: _Call) -> Answer:
    if call.failures:
        return Answer(call.api, wire.UtilityOutput(call.call_id, "; ".join(call.failures)))
    return Answer(call.api, wire.UtilityOutput(call.call_id, None, _combined(call)))


def _combined(call: _Call) -> msgspec.Raw:
    """One result for all."""
    first = call.results[0]
    if all(result == first for result in call.results):
        return first
    kind, value = wire.decode_result(first)
    values = [wire.decode_result(result)[1] for result in call.results]
    if all(isinstance(v, bool) for v in values):
        return wire.raw((kind, all(values)))
    if call.method in INTERSECTED:
        return wire.raw((kind, [v for v in value if all(v in other for other in values)]))
    return first
