"""Warm-up: what a load's first requests would pay for is paid before it is measured.

Compiling, handshakes and first transfers happen once per prefill→decode pair. So on our own cluster
requests go out until each pair has carried one, as far as its controller says which took which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

from vdisagg.bench.asks import Ask, Message, Prompt
from vdisagg.bench.datasets.random import Ids
from vdisagg.bench.refusals import advice
from vdisagg.bench.samples import Phases, Sample
from vdisagg.errors import Failure

ROUNDS = 5
"""So many times as many requests as there are pairs, at most: routing evens out well before."""


class Cluster(Protocol):
    """What is asked of our own cluster's controller; see `Insight`."""

    def begin(self) -> None: ...
    def links(self) -> list[tuple[str, str]]: ...
    def phases(self) -> dict[str, Phases]: ...


async def warm(
    send: Callable[[int], Awaitable[Sample]],
    least: int,
    *,
    where: str,
    cluster: Cluster | None,
    strict: bool = False,
) -> list[str]:
    """Send at least so many requests; a note for each pair that could not be reached.

    `send` gets the request's number, from 0. First one after the other, so that what fails at all is
    tried once; then, where pairs are missing, as many at once as there are pairs, for a policy that
    goes by load spreads these. `strict`: only OpenAI's fields are sent. Raises Failure when a request
    fails.
    """
    if least == 0:
        return []
    if cluster:
        await asyncio.to_thread(cluster.begin)
    for number in range(least):
        _check([await send(number)], where, strict)
    if cluster is None:
        return []
    pairs = set(await asyncio.to_thread(cluster.links))
    missing = pairs - await _carried(cluster)
    sent = least
    for _ in range(ROUNDS):
        if not missing:
            break
        numbers = range(sent, sent + len(pairs))
        _check(await asyncio.gather(*map(send, numbers)), where, strict)
        sent += len(pairs)
        missing -= await _carried(cluster)
    return [
        f"{f'{prefill}→{decode}' if prefill else decode} carried none of the {sent} warm-up requests: the first one that it "
        "carries may be slow"
        for prefill, decode in sorted(missing)
    ]


async def _carried(cluster: Cluster) -> set[tuple[str, str]]:
    phases = await asyncio.to_thread(cluster.phases)
    return {(each.prefill, each.decode) for each in phases.values()}


def _check(samples: list[Sample], where: str, strict: bool) -> None:
    for sample in samples:
        if sample.failure:
            raise Failure(
                f"{where}: the warm-up request failed: {sample.failure}: {sample.detail}; "
                f"next: {advice(sample.failure, sample.detail, strict=strict)}"
            )


def strange(ask: Ask, ids: Ids, rng: Random) -> Ask:
    """A request of the same kind and length whose prompt is another: no cache gains by it.

    Token ids are drawn anew; of a text the words are shuffled, which keeps its tokens' number nearly.
    """
    return Ask(_strange(ask.prompt, ids, rng), ask.output_len)


def _strange(prompt: Prompt, ids: Ids, rng: Random) -> Prompt:
    if isinstance(prompt, str):
        return _shuffled(prompt, rng)
    messages = [part for part in prompt if isinstance(part, Message)]
    if messages:
        return [Message(each.role, _shuffled(each.content, rng)) for each in messages]
    return ids.draw(len(prompt), rng)


def _shuffled(text: str, rng: Random) -> str:
    words = text.split()
    rng.shuffle(words)
    return " ".join(words)
