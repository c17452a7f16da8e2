"""Handles that are read too late, twice, or never were: an answer is right, or it is an error.

B05: a decode engine that takes its time, with leases of two seconds. B06: a decode engine that is
handed what no handle is, by a hand in the controller's place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from real.conftest import RealCluster, cluster_at, running
from real.cores import core, stopped
from real.hand import Ended, Hand, hand_on
from real.reference import Question, Reference, ask, ask_at_once, question
from vdisagg.cluster import admin

pytestmark = pytest.mark.real

LEASE_S = 2
SLOTS = 2
"""Requests that decode runs at once."""
REQUESTS = 50
PREFILL_BLOCKS = 40

Asked = tuple[list[Question], list[tuple[int, list[int]]]]
"""Questions, and of each answer the status and the tokens."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """1P1D with short leases, and a decode engine that is behind as soon as anything is asked."""
    cluster = cluster_at(
        tmp_path_factory.mktemp("hasty"),
        "hasty",
        "tiny",
        prefill={"node": "here", "args": {"num_gpu_blocks_override": PREFILL_BLOCKS}},
        decode={"node": "here", "args": {"max_num_seqs": SLOTS}},
        # An engine that is stopped for some seconds is none that is given up.
        heartbeat={"interval_s": 20, "misses": 3},
        timeouts={"lease_s": LEASE_S, "handover_s": 120},
    )
    yield from running(cluster)


@pytest.fixture(scope="module")
def reference(plain_tiny: str) -> Reference:
    """Right answers."""
    return Reference(plain_tiny)


def wrong(
    reference: Reference, questions: list[Question], answers: list[tuple[int, list[int]]]
) -> str:
    """What is wrong with answers; those with another status than 200 say nothing wrong."""
    return "\n".join(
        f"{number}: {what}"
        for number, (asked, (status, tokens)) in enumerate(zip(questions, answers, strict=True))
        if status == 200 and (what := reference.wrong(asked, tokens))
    )


@contextmanager
def watched(cluster: RealCluster) -> Iterator[list[int]]:
    """How many prompts were computed, or about to be, that decode had not read yet; looked at all the time."""
    seen: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            status = cluster.status()
            prefill = sum(i.in_flight for i in status.instances if i.role == "prefill")
            seen.append(prefill + status.totals.handles_held)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def expired(status: admin.ControllerStatus) -> int:
    """Leases that have run out."""
    return sum(instance.kv_expiries for instance in status.instances)


def expired_as_shown(cluster: RealCluster) -> int:
    """The same in `vdisagg status --json`."""
    instances = [process["instance"] for process in cluster.heard()["processes"]]
    return sum(int(instance["kv_expiries"]) for instance in instances if instance)


def test_b05_prefill_does_not_run_ahead_of_a_decode_engine_that_is_behind(
    hasty: RealCluster, reference: Reference
) -> None:
    questions = [question(300, 100, f"behind {number}") for number in range(REQUESTS)]
    begun = time.monotonic()
    with watched(hasty) as ahead:
        answers = ask_at_once(hasty.url, hasty.model, questions)
    pace = REQUESTS / (time.monotonic() - begun)
    print(f"{pace:.1f} requests/s; ahead: {max(ahead)}; expired: {expired(hasty.status())}")
    assert max(ahead) <= SLOTS + 1 + pace * LEASE_S, "more than decode can read within the lease"
    assert {status for status, _ in answers} == {200}
    assert not wrong(reference, questions, answers)
    hasty.idle()


def all_right(reference: Reference, cluster: RealCluster, asked: Asked) -> None:
    """Every answer, and nothing left behind."""
    questions, answers = asked
    assert not wrong(reference, questions, answers)
    assert {status for status, _ in answers} == {200}, "those that were too late are redone"
    status = cluster.idle(30)
    assert {(i.state, i.generation) for i in status.instances} == {("ready", 1)}


@contextmanager
def decode_stopped(cluster: RealCluster, at_least_s: float) -> Iterator[None]:
    """Decode stopped while a handle waits to be read."""
    victim = core(cluster, "d0")
    while True:
        cluster.until(lambda s: s.totals.handles_held > 0, "handle")
        with stopped(victim):
            time.sleep(0.2)  # what it had said before that is heard by now
            if cluster.status().totals.handles_held > 0:
                begun = time.monotonic()
                yield
                time.sleep(max(0.0, begun + at_least_s - time.monotonic()))
                return


def test_b05_fifty_requests_at_a_decode_engine_that_stops_for_longer_than_the_lease_are_right(
    hasty: RealCluster, reference: Reference
) -> None:
    questions = [question(300, 40, f"stopped {number}") for number in range(REQUESTS)]
    before = expired(hasty.status())
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_at_once, hasty.url, hasty.model, questions)
        with decode_stopped(hasty, 5):
            hasty.until(lambda s: expired(s) > before, "expired lease")
        all_right(reference, hasty, (questions, asked.result()))
    status = hasty.status()
    print(f"expired: {expired(status) - before}; {status.totals}")
    assert expired_as_shown(hasty) >= expired(status) > before


def read_too_late(cluster: RealCluster, seed: str) -> Asked:
    """Two requests run, and a third one's handle waits until all of prefill's blocks have been others'."""
    questions = [question(300, 700, f"{seed} {number}") for number in range(SLOTS + 1)]
    others = [question(900, 1, f"other {seed} {n}") for n in range(PREFILL_BLOCKS // 7 * 2)]
    before = expired(cluster.status())
    with ThreadPoolExecutor(SLOTS + 1) as pool:
        asked = [pool.submit(ask, cluster.url, cluster.model, one) for one in questions[:SLOTS]]
        cluster.until(
            lambda s: s.instances[1].running == SLOTS and s.totals.handles_held == 0, "full engine"
        )
        asked.append(pool.submit(ask, cluster.url, cluster.model, questions[SLOTS]))
        with decode_stopped(cluster, LEASE_S):
            cluster.until(lambda s: expired(s) > before, "expired lease")
            for other in others:
                assert ask(cluster.url, cluster.model, other)[0] == 200
        return questions, [one.result() for one in asked]


def test_b05_blocks_that_others_have_by_now_are_in_no_answer(
    hasty: RealCluster, reference: Reference
) -> None:
    before = hasty.status()
    all_right(reference, hasty, read_too_late(hasty, "answer"))
    after = hasty.status()
    again, mismatches = (
        after.totals.continued - before.totals.continued,
        after.links[0].mismatches - before.links[0].mismatches,
    )
    print(f"continued: {again}; mismatches: {mismatches}")
    assert again + mismatches > 0, "nothing was computed again"


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1, "top_k": 1}], ids=["greedy", "top 1"])
def test_b05_nor_in_a_later_answer_to_the_same_prompt(
    hasty: RealCluster, reference: Reference, sampling: dict[str, Any]
) -> None:
    """What decode has read is in its prefix cache. The second way of asking gives the same tokens, but
    nobody compares prefill's with decode's."""
    seed = f"later {sorted(sampling)}"
    questions, _ = read_too_late(hasty, seed)
    before = hasty.status().links[0].mismatches
    later = [Question(asked.prompt, 12) for asked in questions]
    answers = [ask(hasty.url, hasty.model, asked, **sampling) for asked in later]
    print(f"mismatches: {hasty.status().links[0].mismatches - before}")
    all_right(reference, hasty, (later, answers))
    assert hasty.status().links[0].mismatches == before


# -- B06 ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hand(hasty: RealCluster) -> Iterator[Hand]:
    """After it the cluster has no controller any more: these tests come last."""
    with hand_on(hasty) as hand:
        yield hand
        assert not hand.dead, "an engine died of what it was handed"


ANSWER = 8


def handed(hand: Hand, reference: Reference, change: dict[str, Any]) -> tuple[Ended, str]:
    """What comes of a handle of which something is not as prefill has said it; and what is wrong with it."""
    asked = question(400, ANSWER, f"handed {sorted(change)}")
    handle = hand.prefill("p0", asked.prompt).handle
    assert handle is not None
    ended = hand.decode("d0", asked.prompt, handle | change, ANSWER)
    return ended, "" if ended.failed else reference.wrong(asked, ended.tokens)


@pytest.mark.parametrize(
    ("what", "change", "fails"),
    [
        ("nothing", {}, False),
        ("request", {"remote_request_id": "nobody"}, False),
        ("blocks", {"remote_block_ids": [[100_000 + n for n in range(4)]]}, True),
        ("engine", {"remote_engine_id": "nobody", "remote_port": 1}, True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_b06_a_handle_that_names_what_is_not_there_gives_an_error_or_the_right_answer(
    hand: Hand, reference: Reference, what: str, change: dict[str, Any], fails: bool
) -> None:
    """The plan has set the policy: with vLLM's other one decode would compute the prompt unasked."""
    ended, wrong = handed(hand, reference, change)
    assert not wrong
    assert ended.failed == fails
    _, wrong = handed(hand, reference, {})
    assert not wrong, "the next honest one is right"


def test_b06_a_handle_whose_blocks_are_others_by_now_is_seen_by_the_first_token(
    hand: Hand, reference: Reference
) -> None:
    """The engine can't know: it reads what lies there. So the controller uses no handle twice, and compares
    prefill's token with decode's first."""
    asked = question(400, ANSWER, "reused")
    first = hand.prefill("p0", asked.prompt)
    assert first.handle is not None
    ended = hand.decode("d0", asked.prompt, first.handle, ANSWER)
    assert not reference.wrong(asked, ended.tokens)
    for number in range(PREFILL_BLOCKS // 7 * 2):  # these take every block, and give it back
        other = question(900, ANSWER, f"takes {number}")
        taken = hand.prefill("p0", other.prompt).handle
        assert taken is not None
        assert not hand.decode("d0", other.prompt, taken, 1).failed
    again = hand.decode("d0", asked.prompt, first.handle, ANSWER)
    if not again.failed and reference.wrong(asked, again.tokens):
        assert again.tokens[:1] != first.tokens
