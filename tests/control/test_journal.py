"""The journal's files: written, read back, and left behind by processes that were killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.messages import request
from vdisagg.cluster import leftovers
from vdisagg.cluster.leftovers import JOURNAL_FILE as FILE
from vdisagg.cluster.leftovers import OLD_JOURNAL_FILE as OLD_FILE
from vdisagg.cluster.leftovers import PART_JOURNAL_FILE as PART_FILE
from vdisagg.control import entries, wire
from vdisagg.control.entries import INPUT, OUTPUT, Entry
from vdisagg.control.journal import Journal
from vdisagg.control.ledger import OpenLeg
from vdisagg.control.recall import Recalled, RecalledRequest, recall


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.open(tmp_path)
    yield opened
    opened.close()


def again(directory: Path) -> Recalled:
    """What a new controller would find."""
    opened = Journal.open(directory)
    opened.close()
    return opened.recalled()


def add(request_id: str) -> bytes:
    return wire.encode(request(request_id))


def out(request_id: str, *tokens: int, finish: int | None = None) -> bytes:
    output = wire.Output(request_id, list(tokens), finish_reason=finish)
    return wire.encode(wire.Outputs(outputs=[output]))


def written(path: Path) -> list[Entry]:
    return [entry for _, entry in entries.read(path)]


def test_an_entry_is_head_sizes_and_parts(journal: Journal, tmp_path: Path) -> None:
    journal.input(3, b"\x01", b"\x90", [b"", b"xy"])
    assert journal.output(2, b"abc") == 1
    assert (tmp_path / FILE).read_bytes() == (
        b"I" + b"\3\0\0\0" + b"\1\0\0\0\0\0\0\0" + b"\4\0\0\0"
        b"\1\0\0\0\0\0\0\0" b"\1\0\0\0\0\0\0\0" b"\0\0\0\0\0\0\0\0" b"\2\0\0\0\0\0\0\0"
        b"\x01\x90xy"
        b"O" + b"\2\0\0\0" + b"\1\0\0\0\0\0\0\0" + b"\1\0\0\0"
        b"\3\0\0\0\0\0\0\0"
        b"abc"
    )  # fmt: skip
    assert written(tmp_path / FILE) == [
        Entry(INPUT, 3, 1, [b"\x01", b"\x90", b"", b"xy"]),
        Entry(OUTPUT, 2, 1, [b"abc"]),
    ]


def test_the_journal_is_its_owners_alone(journal: Journal, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_an_entry_is_in_the_file_when_the_call_returns(journal: Journal, tmp_path: Path) -> None:
    journal.input(0, wire.ADD, add("a"))
    journal.output(0, out("a", 7, 8))
    assert again(tmp_path) == Recalled(
        requests=[RecalledRequest(0, "a", add("a"), [], [7, 8], True)],
        received={0: 1},
        sent={0: 1},
    )


def test_numbers_count_from_one_for_each_api_server_and_direction(journal: Journal) -> None:
    assert [journal.output(api, b"\x90") for api in (0, 7, 0, 0, 7)] == [1, 1, 2, 3, 2]
    for api in (7, 7, 3):
        journal.input(api, b"\x7f", b"")
    assert [(journal.received(api), journal.sent(api)) for api in (0, 3, 7, 9)] == [
        (0, 3),
        (1, 0),
        (2, 2),
        (0, 0),
    ]


def test_a_reopened_journal_goes_on(journal: Journal, tmp_path: Path) -> None:
    journal.input(1, wire.ADD, add("a"))
    journal.output(1, out("a", 7))
    journal.close()
    reopened = Journal.open(tmp_path)
    assert (reopened.received(1), reopened.sent(1)) == (1, 1)
    assert reopened.output(1, out("a", 8)) == 2
    reopened.close()
    assert [one.emitted for one in again(tmp_path).requests] == [[7, 8]]


def test_many_api_servers_keep_their_requests_apart(journal: Journal, tmp_path: Path) -> None:
    for api in range(100):
        journal.input(api, wire.ADD, add("same"))
    for api in range(0, 100, 2):
        journal.output(api, out("same", api))
    found = again(tmp_path)
    assert [(one.api, one.emitted) for one in found.requests] == [
        (api, [] if api % 2 else [api]) for api in range(100)
    ]
    assert found.received == dict.fromkeys(range(100), 1)
    assert found.sent == dict.fromkeys(range(0, 100, 2), 1)


def test_a_message_of_very_many_frames_comes_back_whole(journal: Journal, tmp_path: Path) -> None:
    frames = [bytes([number % 256]) * (number % 5) for number in range(3000)]
    journal.input(0, wire.ADD, add("a"), frames)
    assert again(tmp_path).requests[0].frames == frames


def test_reset_forgets_everything(journal: Journal, tmp_path: Path) -> None:
    journal.input(0, wire.ADD, add("a"))
    journal.output(0, out("a", 7))
    (tmp_path / OLD_FILE).write_bytes(b"older")
    journal.reset()
    assert (journal.received(0), journal.sent(0), journal.recalled()) == (0, 0, Recalled())
    assert list(journal.outputs_after(0, 0)) == []
    assert journal.output(0, out("b", 1)) == 1
    assert again(tmp_path) == Recalled(sent={0: 1})
    assert not (tmp_path / OLD_FILE).exists()


def test_outputs_after_gives_one_api_servers_messages_in_order(journal: Journal) -> None:
    for number in range(5):
        journal.output(0, b"zero%d" % number, [b"frame"] * number)
        journal.output(1, b"one%d" % number)
        journal.input(0, b"\x7f", b"")
    assert list(journal.outputs_after(0, 3)) == [
        (4, b"zero3", [b"frame"] * 3),
        (5, b"zero4", [b"frame"] * 4),
    ]
    assert [seq for seq, *_ in journal.outputs_after(1, 0)] == [1, 2, 3, 4, 5]
    assert list(journal.outputs_after(0, 5)) == list(journal.outputs_after(9, 0)) == []


# -- what is left half written --------------------------------------------------------------


def test_an_entry_cut_at_any_byte_is_ignored_and_written_over(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    journal = Journal.open(whole)
    journal.input(0, wire.ADD, add("a"))
    journal.output(0, out("a", 7))
    before = (whole / FILE).stat().st_size
    journal.input(0, wire.ADD, add("b"), [b"frame", b""])
    journal.close()
    everything = (whole / FILE).read_bytes()
    expected = Recalled(
        requests=[RecalledRequest(0, "a", add("a"), [], [7], True)],
        received={0: 1},
        sent={0: 1},
    )
    for cut in range(before, len(everything)):
        (tmp_path / FILE).write_bytes(everything[:cut])
        journal = Journal.open(tmp_path)
        assert journal.recalled() == expected, cut
        journal.input(0, wire.ABORT, wire.encode(["a"]))
        journal.close()
        assert again(tmp_path) == Recalled(received={0: 2}, sent={0: 1}), cut


def test_garbage_at_the_end_is_ignored(journal: Journal, tmp_path: Path) -> None:
    journal.input(0, wire.ADD, add("a"))
    before = again(tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    for garbage in (b"\0" * 100, b"\xff" * 100, b"I" + b"\xff" * 100, b"O" * 17):
        (tmp_path / FILE).write_bytes(whole + garbage)
        assert again(tmp_path) == before, garbage


WRITER = """
import random, sys
from pathlib import Path
from fakes.messages import request
from vdisagg.control import wire
from vdisagg.control.journal import Journal

rng = random.Random(int(sys.argv[2]))
journal = Journal.open(Path(sys.argv[1]), max_bytes=int(sys.argv[3]))
if len(sys.argv) > 4:  # die at so many-th step of what the journal does with its files
    import os, signal
    steps = 0
    def step(event, args):
        global steps
        if event in ("open", "os.rename", "os.remove", "os.truncate"):
            steps += 1
            if steps == int(sys.argv[4]):
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(step)
number = 0
while True:
    number += 1
    api = rng.randrange(3)
    frames = [rng.randbytes(rng.randrange(3000)) for _ in range(rng.randrange(3))]
    journal.input(api, wire.ADD, wire.encode(request(f"r{number}")), frames)
    print("I", api, f"r{number}", flush=True)
    for token in range(rng.randrange(4)):
        finish = wire.STOP if rng.random() < 0.3 else None
        output = wire.Output(f"r{number}", [token], finish_reason=finish)
        journal.output(api, wire.encode(wire.Outputs(outputs=[output])))
        print("O", api, f"r{number}", token, int(finish is not None), flush=True)
        if finish is not None:
            break
    journal.tidy()
"""


class Told:
    """What a writing process has told of before it was killed, as live requests."""

    def __init__(self, lines: list[str]) -> None:
        self.live: dict[tuple[int, str], list[int]] = {}
        self.received: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        for line in lines:
            self.take(line.split())

    def take(self, words: list[str]) -> None:
        api, request_id = int(words[1]), words[2]
        if words[0] == "I":
            self.received[api] = self.received.get(api, 0) + 1
            self.live[api, request_id] = []
            return
        self.sent[api] = self.sent.get(api, 0) + 1
        if words[4] == "1":
            self.live.pop((api, request_id), None)
        elif (api, request_id) in self.live:
            self.live[api, request_id].append(int(words[3]))

    def holds(self, found: Recalled) -> bool:
        live = {(one.api, one.request_id): one.emitted for one in found.requests}
        return (live, found.received, found.sent) == (self.live, self.received, self.sent)


def writer(directory: Path, *arguments: object) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", WRITER, str(directory), *map(str, arguments)]
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})


def assert_whole(directory: Path, lines: list[str], all_lines: list[str]) -> None:
    """The journal holds what was told, or one entry more (written, and then not told any more)."""
    found = again(directory)
    if Told(lines).holds(found):
        return
    assert Told(all_lines[: len(lines) + 1]).holds(found)


def told_before_kill(process: subprocess.Popen[bytes], lines: int | None = None) -> list[str]:
    """What the process tells until it dies; it is killed after some `lines`."""
    assert process.stdout is not None
    told = []
    if lines is not None:
        told = [process.stdout.readline().decode() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
    told += [line.decode() for line in process.stdout.readlines()]
    process.wait(30)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
    return [line for line in told if line.endswith("\n")]


@pytest.fixture(scope="module")
def all_lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a writer with seed 1 tells, longer than any killed one gets."""
    return told_before_kill(writer(tmp_path_factory.mktemp("long"), 1, 1 << 30), 12_000)


@pytest.mark.parametrize("turn", range(12))
def test_a_killed_writer_leaves_all_that_it_told_of(
    tmp_path: Path, turn: int, all_lines: list[str]
) -> None:
    lines = random.Random(turn).randrange(1, 1500)
    told = told_before_kill(writer(tmp_path, 1, 20_000 if turn % 2 else 1 << 30), lines)
    assert len(told) < len(all_lines)
    assert_whole(tmp_path, told, all_lines)
    sent = Told(told).sent
    journal = Journal.open(tmp_path)
    for api, last in sent.items():
        seqs = [seq for seq, *_ in journal.outputs_after(api, 0)]
        assert seqs == list(range(journal.sent(api) - len(seqs) + 1, journal.sent(api) + 1))
        assert seqs[-1] >= last
    journal.close()


@pytest.mark.parametrize("step", range(1, 25))
def test_a_writer_killed_at_any_step_of_a_new_file_loses_nothing(
    tmp_path: Path, step: int, all_lines: list[str]
) -> None:
    told = told_before_kill(writer(tmp_path, 1, 20_000, step))
    assert_whole(tmp_path, told, all_lines)


# -- a new file -----------------------------------------------------------------------------


def fill(journal: Journal, until: Path) -> int:
    """Requests that end, and one that does not, until there is an older file; how many ended."""
    journal.input(0, wire.ADD, add("stays"), [b"frame"])
    journal.output(0, out("stays", 7))
    count = 0
    while not until.exists():
        journal.input(0, wire.ADD, add(f"r{count}"), [b"x" * 100])
        journal.output(0, out(f"r{count}", 1, finish=wire.STOP))
        journal.tidy()
        count += 1
        assert count < 10_000
    return count


def test_a_long_journal_goes_on_in_a_new_file_with_what_is_live(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, max_bytes=10_000)
    count = fill(journal, tmp_path / OLD_FILE)
    assert 10_000 < (tmp_path / OLD_FILE).stat().st_size < 11_000
    assert (tmp_path / FILE).stat().st_size < 500
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    journal.output(0, out("stays", 8))
    assert again(tmp_path) == Recalled(
        requests=[RecalledRequest(0, "stays", add("stays"), [b"frame"], [7, 8], True)],
        received={0: count + 1},
        sent={0: count + 2},
    )
    seqs = [seq for seq, *_ in journal.outputs_after(0, 0)]
    assert seqs == list(range(1, count + 3)), "the older file's are there, too"
    journal.close()


def test_two_files_are_kept_however_much_is_written(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, max_bytes=10_000)
    for _ in range(5):
        fill(journal, tmp_path / OLD_FILE)
        (tmp_path / OLD_FILE).unlink()
    fill(journal, tmp_path / OLD_FILE)
    last = journal.sent(0)
    seqs = [seq for seq, *_ in journal.outputs_after(0, 0)]
    assert seqs[0] > 1
    assert seqs == list(range(seqs[0], last + 1))
    assert {path.name for path in tmp_path.iterdir()} == {FILE, OLD_FILE}
    journal.close()


def test_without_tidying_a_new_file_is_begun_all_the_same(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, max_bytes=10_000)
    for number in range(1000):
        journal.output(0, b"x" * 100)
        assert journal.sent(0) == number + 1
    journal.close()
    assert (tmp_path / FILE).stat().st_size < 21_000
    assert again(tmp_path).sent == {0: 1000}


def test_live_requests_longer_than_a_file_do_not_have_it_written_each_time(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, max_bytes=10_000)
    journal.input(0, wire.ADD, add("long"), [b"x" * 50_000])
    journal.tidy()
    first = (tmp_path / FILE).stat().st_ino
    for token in range(100):
        journal.output(0, out("long", token))
        journal.tidy()
    assert (tmp_path / FILE).stat().st_ino == first
    journal.close()
    reopened = Journal.open(tmp_path, max_bytes=10_000)
    reopened.output(0, out("long", 100))
    reopened.tidy()
    reopened.close()
    assert (tmp_path / FILE).stat().st_ino == first
    assert [one.emitted for one in again(tmp_path).requests] == [list(range(101))]


def test_an_unfinished_new_file_is_dropped(journal: Journal, tmp_path: Path) -> None:
    journal.input(0, wire.ADD, add("a"))
    before = again(tmp_path)
    (tmp_path / PART_FILE).write_bytes(b"L\0\0\0\0half")
    assert again(tmp_path) == before
    assert not (tmp_path / PART_FILE).exists()


def test_recalled_is_what_recall_makes_of_all_entries(tmp_path: Path) -> None:
    rng = random.Random(5)
    journal = Journal.open(tmp_path, max_bytes=3000)
    everything: list[Entry] = []
    counts: dict[tuple[bytes, int], int] = {}

    def note(what: bytes, api: int, parts: list[bytes]) -> None:
        counts[what, api] = counts.get((what, api), 0) + 1
        everything.append(Entry(what, api, counts[what, api], parts))

    for number in range(600):
        api = rng.randrange(2)
        request_id = f"r{rng.randrange(number + 1)}"
        if rng.random() < 0.4:
            journal.input(api, wire.ADD, add(f"r{number}"))
            note(INPUT, api, [wire.ADD, add(f"r{number}")])
        elif rng.random() < 0.2:
            payload = wire.encode([request_id])
            journal.input(api, wire.ABORT, payload)
            note(INPUT, api, [wire.ABORT, payload])
        else:
            payload = out(request_id, number, finish=wire.STOP if rng.random() < 0.7 else None)
            journal.output(api, payload)
            note(OUTPUT, api, [payload])
        if rng.random() < 0.5:
            journal.tidy()
    journal.close()
    assert (tmp_path / OLD_FILE).exists()
    assert again(tmp_path) == recall(everything)
    assert again(tmp_path).requests


# -- legs -----------------------------------------------------------------------------------------


def test_legs_are_in_the_file_when_the_call_returns_and_their_ends_with_what_comes_next(
    journal: Journal, tmp_path: Path
) -> None:
    journal.begun("p:1", "p0")
    journal.sample("p0", b"handle")
    journal.handed("p:1", "d:2", "d0")
    assert again(tmp_path).legs == [OpenLeg("p:1", "p0", "d0", "d:2")]
    assert again(tmp_path).samples == {"p0": b"handle"}
    journal.over("p:1")
    entries_before = len(written(tmp_path / FILE))
    journal.begun("p:3", "p0")
    assert len(written(tmp_path / FILE)) == entries_before + 1
    assert [leg.leg for leg in again(tmp_path).legs] == ["p:3"]
    journal.over("p:3")
    journal.tidy()
    assert again(tmp_path).legs == []
    journal.begun("p:4", "p0")
    journal.gone("p0")
    assert again(tmp_path) == Recalled()


def test_many_ends_do_not_wait_for_anything(journal: Journal, tmp_path: Path) -> None:
    for number in range(300):
        journal.begun(f"p:{number}", "p0")
    for number in range(300):
        journal.over(f"p:{number}")
    assert len(again(tmp_path).legs) == 300 - 256


def test_legs_outlive_new_files_and_another_front_end(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, max_bytes=1000)
    journal.begun("p:1", "p0")
    journal.sample("p0", b"handle")
    fill(journal, tmp_path / OLD_FILE)
    assert [leg.leg for leg in again(tmp_path).legs] == ["p:1"]
    journal.begun("p:2", "p0")
    journal.over("p:1")
    journal.reset(legs=True)
    assert again(tmp_path) == Recalled(
        legs=[OpenLeg("p:2", "p0", "p0", "p:2")], samples={"p0": b"handle"}
    )
    journal.reset()
    assert again(tmp_path) == Recalled()
    journal.close()


# -- a disk that takes no more ---------------------------------------------------------------

FULL = """
import resource, signal, sys
from pathlib import Path
from vdisagg.control.journal import Journal

journal = Journal.open(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
numbers = [journal.output(0, b"x" * 300) for _ in range(6)]
print(numbers, journal.sent(0), journal.fault)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.tidy()
print(journal.output(0, b""), list(Path(sys.argv[1]).iterdir()))
journal.reset()
print(journal.output(0, b""), repr(journal.fault))
"""


def test_a_journal_that_cannot_be_written_is_given_up_and_numbers_go_on(tmp_path: Path) -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.splitlines() == [
        f"[1, 2, 3, 4, 5, 6] 6 {tmp_path / FILE}: cannot be written: File too large",
        "7 []",
        "1 ''",
    ], done.stderr


def test_a_journal_that_cannot_be_opened_is_given_up(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "no")
    assert (
        journal.fault == f"{tmp_path / 'no' / FILE}: cannot be written: No such file or directory"
    )
    assert (journal.output(0, b""), journal.output(0, b"")) == (1, 2)
    assert journal.recalled() == Recalled()


@pytest.mark.parametrize("by", ["the controller", "down"])
def test_nothing_is_left_when_the_run_is_over(tmp_path: Path, by: str) -> None:
    journal = Journal.open(tmp_path, max_bytes=1000)
    fill(journal, tmp_path / OLD_FILE)
    (tmp_path / PART_FILE).write_bytes(b"")
    if by == "the controller":
        journal.remove()
    else:
        journal.close()
        leftovers.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []
