import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from vdisagg.bench.loop import AT_ONCE, run

Pairs = list[tuple[socket.socket, socket.socket]]


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    with contextlib.ExitStack() as stack:
        found = [socket.socketpair() for _ in range(AT_ONCE * 3)]
        for pair in found:
            for end in pair:
                stack.enter_context(end)
        yield found


def read_until(pairs: Pairs, enough: Callable[[list[str]], bool], *, take: bool) -> list[str]:
    """What happened, in order: the places of what was read, and "due" for a timer that is due at once
    when the first is read. With `take` a socket is read empty, else it stays ready."""
    order: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def read(place: int) -> None:
            if take:
                pairs[place][0].recv(1)
            if not order:
                loop.call_later(0, order.append, "due")
            order.append(str(place))
            if enough(order):
                done.set()

        for place, (ours, theirs) in enumerate(pairs):
            theirs.send(b"x")
            loop.add_reader(ours, read, place)
        await done.wait()
        for ours, _ in pairs:
            loop.remove_reader(ours)

    run(main())
    return order


def test_what_is_due_comes_between_the_answers_of_a_burst(pairs: Pairs) -> None:
    order = read_until(pairs, lambda order: len(order) > len(pairs), take=True)
    assert sorted(order) == sorted(["due", *map(str, range(len(pairs)))])
    assert order.index("due") <= 2 * AT_ONCE  # it is looked at before the reading after the first


def test_nobody_starves_while_others_always_have_something(pairs: Pairs) -> None:
    order = read_until(pairs, lambda order: len(order) > 10 * len(pairs), take=False)
    counts = Counter(order)
    assert len(counts) == len(pairs) + 1
    assert min(counts[str(place)] for place in range(len(pairs))) >= 9
