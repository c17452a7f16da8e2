"""The fault matrix on real engines: 2P2D on the tiny model, one hit for all three moments of a row.

docs/faults.md says what must come of each cell; tests/faults has the same with stand-ins, and the hits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from faults.asker import Question
from faults.bed import Bed
from faults.cells import CELLS, PHASES, Cell, Phase
from faults.stage import Questions, Timing
from real.ask import post, random_prompt
from real.conftest import cluster_at, running

pytestmark = [pytest.mark.real, pytest.mark.faults]

TIMING = Timing(
    limit_s=3.0,
    stop_s=10.0,
    stopped_s=24.0,
    slack_s=1.5,
    restart_s=120.0,
    end_s=90.0,
    lease_s=30.0,
)


def question(length: int, max_tokens: int, number: int, **options: Any) -> Question:
    prompt = tuple(random_prompt(length, f"faults {number}"))
    return Question(prompt, max_tokens, tuple(options.items()))


STREAMS = tuple(question(200 + seed, 780, seed) for seed in range(4))
HELD = tuple(question(260 + 30 * seed, 12, seed) for seed in range(4))
UNHURRIED = tuple(question(260 + 30 * seed, 12, seed, logprobs=1) for seed in range(4))
SHORT = question(150, 6, 9)
UNSAVED = tuple(
    question(200, 780, 7, **options)
    for options in ({"presence_penalty": 0.5}, {"seed": 7, "temperature": 0.8})
    for _ in range(2)
)


def whole(url: str, model: str, asked: Question) -> list[int]:
    """The answer while all is well."""
    status, reply = post(url, "/v1/completions", asked.body(model), timeout_s=120)
    assert status == 200, reply
    (choice,) = reply["choices"]
    return list(choice["token_ids"])


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    mp = {"args": {"distributed_executor_backend": "mp"}}
    cluster = cluster_at(
        tmp_path_factory.mktemp("matrix"),
        "matrix",
        "tiny",
        prefill={"node": "here", "count": 2},
        decode={"instances": [{"node": "here"}, {"node": "here", **mp}]},
        heartbeat={"interval_s": 1, "misses": 3},
        restart={"stopped_s": TIMING.stopped_s, "limit": 100},
        timeouts={"launch_s": 300, "stop_s": 10, "request_s": 60, "handover_s": 5},
    )
    for up in running(cluster):
        known = {
            asked: whole(up.url, up.model, asked)
            for asked in (*STREAMS, *HELD, SHORT, *set(UNSAVED))
        }
        known |= dict(zip(UNHURRIED, (known[asked] for asked in HELD), strict=True))
        asked = Questions(STREAMS, HELD, UNHURRIED, SHORT, known.__getitem__)
        yield Bed(up, TIMING, asked)


def test_a_stream_that_cannot_go_on_elsewhere_ends_in_an_error_event(bed: Bed) -> None:
    """Of each kind two, since two decode engines take turns, and one of these is killed."""
    ends: Counter[str | None] = Counter()
    for one in bed.killed_under("d0", UNSAVED):
        wrong = one.wrong(bed.questions.right(one.question), frozenset({"whole", "error"}))
        assert not wrong, wrong
        ends[one.ending] += 1
    assert set(ends) == {"whole", "error"}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cell(bed: Bed, cell: Cell, phase: Phase) -> None:
    bed.report(cell).look(phase)
