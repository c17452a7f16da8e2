"""What the controller costs: CPU seconds per 1,000 output tokens, between fakes that speak vLLM's protocol.

    python benchmarks/controller.py                       # against a plain forwarder
    python benchmarks/controller.py --against ../other    # and the controller of another checkout

No vLLM, no model: fake engines (tests/fakes) in one process take steps of a real engine's length and say what a
real one says in each, a fake front end in this one keeps so many requests in flight, or sends them at a rate.
Every run begins a fresh controller. Its CPU time is what the kernel has counted for all its threads.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from fakes.cluster import make_plan  # noqa: E402 - where the fakes are is only known now
from fakes.engine import Behaviour, FakeEngine, KvStore, continuation  # noqa: E402
from fakes.front import FakeFront  # noqa: E402
from vdisagg.cluster import record  # noqa: E402
from vdisagg.control import wire  # noqa: E402
from vdisagg.plan.model import Plan  # noqa: E402

STEP_S = {"prefill": 0.010, "decode": 0.020}
"""Of the engines of benchmarks/peer.py with 32 requests in flight."""

SPIN_MS = 2
"""A prefill engine with blocks that nobody has read yet steps so often, and reports each step."""

COUNTERS = wire.raw({"requests": 0, "queries": 0, "hits": 0, "preempted": 0, "hits_by_source": {}})
SAMPLING: dict[str, Any] = {
    "temperature": 0.0,
    "_all_stop_token_ids": [2],
    "skip_clone": True,
    "output_kind": 1,
}
Row = dict[str, float]


class FullStats(wire.SchedulerStats):
    """As long as a real engine's."""

    prefix_cache_stats: msgspec.Raw = COUNTERS
    connector_prefix_cache_stats: msgspec.Raw = COUNTERS
    kv_cache_eviction_events: tuple[()] = ()
    cudagraph_stats: None = None
    perf_stats: None = None


class Engine(FakeEngine):
    """Reports as much, and as often, as a real one."""

    IDLE_MS = SPIN_MS

    def _step(self) -> wire.Outputs | None:
        message = super()._step()
        if message is None and any(leg in self._store.held for leg in [*self._owned]):
            message = wire.Outputs(timestamp=time.monotonic())
        if message is not None:
            stats = message.scheduler_stats
            running, usage = (stats.num_running_reqs, stats.kv_cache_usage) if stats else (0, 0.0)
            message.scheduler_stats = FullStats(running, 0, usage)
        return message


def engines(plan: Plan, ended: Event) -> None:
    """The engines' process."""
    store = KvStore()
    running = [
        Engine(i.handshake.zmq, store, name=i.name, behaviour=Behaviour(step_s=STEP_S[i.role]))
        for i in plan.instances
    ]
    ended.wait()
    for engine in running:
        engine.kill()


@dataclass
class Client:
    """What a load has brought."""

    front: FakeFront
    prompts: dict[str, list[int]] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)

    def ask(self, rng: random.Random, args: argparse.Namespace) -> str:
        """One request."""
        prompt = rng.choices(range(3, 30_000), k=args.input_len)
        name = f"cmpl-{rng.getrandbits(64):016x}-0-{rng.getrandbits(32):08x}"
        self.prompts[name], self.sent[name] = prompt, time.monotonic()
        return self.front.add(prompt, request_id=name, max_tokens=args.output_len, **SAMPLING)

    def load(self, count: int, args: argparse.Namespace, *, rate: float = 0.0) -> list[str]:
        """`count` requests, `args.in_flight` at a time, or so many a second; their ids."""
        rng = random.Random(count)
        names: list[str] = []
        open_: set[str] = set()
        begun = time.monotonic()
        while len(names) < count or open_:
            due = count if not rate else int((time.monotonic() - begun) * rate) + 1
            while len(names) < min(due, count) and (rate or len(open_) < args.in_flight):
                names.append(self.ask(rng, args))
                open_.add(names[-1])
            self.front.read(0.001)
            open_ = {name for name in open_ if self.front.finish_reason(name) is None}
        return names

    def row(self, names: list[str], prefix: str) -> Row:
        """Latencies in milliseconds."""
        arrived = [[self.sent[name], *self.front.arrived[name]] for name in names]
        ttft = [1000 * (at[1] - at[0]) for at in arrived]
        tpot = [1000 * (at[-1] - at[1]) / (len(at) - 2) for at in arrived]
        return {
            f"{prefix}TTFT mean ms": statistics.mean(ttft),
            f"{prefix}TTFT p99 ms": sorted(ttft)[int(0.99 * len(ttft))],
            f"{prefix}TPOT mean ms": statistics.mean(tpot),
        }

    def check(self, names: list[str], output_len: int) -> None:
        """Raises AssertionError unless all answers are as long as they should be, and some are right."""
        assert all(len(self.front.tokens(name)) == output_len for name in names)
        for name in names[::50]:
            assert self.front.tokens(name) == continuation(self.prompts[name], output_len)


@dataclass(frozen=True)
class Used:
    """What a process has used so far: CPU of its first thread and of the others in seconds, switches."""

    main_s: float
    other_s: float
    switches: int

    @classmethod
    def of(cls, pid: int) -> Used:
        """See proc(5): schedstat is exact, and of one thread each."""
        cpu, switches = {}, 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            cpu[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
            status = (task / "status").read_text().splitlines()
            switches += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
        main = cpu.pop(str(pid))
        return cls(main, sum(cpu.values()), switches)

    def since(self, before: Used, tokens: int) -> Row:
        """Per 1,000 output tokens."""
        main, other = self.main_s - before.main_s, self.other_s - before.other_s
        per = {
            "CPU s": main + other,
            "CPU s, its own thread": main,
            "CPU s, ZeroMQ's": other,
            "context switches": float(self.switches - before.switches),
        }
        return {name: 1000 * value / tokens for name, value in per.items()}


@contextmanager
def running(words: list[str], source: Path, directory: Path) -> Iterator[tuple[int, Client]]:
    """A controller between fakes: its pid, and a client."""
    plan = make_plan(directory, 1, 1, interval_s=10.0)
    record.write(directory, record.Record(plan, time.time(), 0, "up", {}))
    spawn = multiprocessing.get_context("spawn")
    ended = spawn.Event()
    played = spawn.Process(target=engines, args=(plan, ended))
    with (directory / "log").open("wb") as log:
        controller = subprocess.Popen(
            [sys.executable, *words, str(directory)],
            env={**os.environ, "PYTHONPATH": str(source)},
            cwd=source,  # which comes first for `-m`
            stdout=log,
            stderr=log,
        )
    front = FakeFront(plan.front_end.handshake, patience_s=30.0)
    try:
        played.start()
        front.attach()
        yield controller.pid, Client(front)
    finally:
        controller.terminate()
        controller.wait()
        ended.set()
        played.join()
        front.close()


def measure(words: list[str], source: Path, args: argparse.Namespace) -> Row:
    """One run of one side."""
    found: Row = {}
    loads = {f"{args.in_flight} in flight: ": (args.requests, 0.0)}
    if args.paced_requests:
        loads[f"{args.rate:g}/s: "] = (args.paced_requests, args.rate)
    with (
        tempfile.TemporaryDirectory(prefix="controller-") as scratch,
        running(words, source, Path(scratch)) as (pid, client),
    ):
        client.check(client.load(64, args), args.output_len)
        for prefix, (count, rate) in loads.items():
            before, begun = Used.of(pid), time.monotonic()
            names = client.load(count, args, rate=rate)
            used = Used.of(pid).since(before, count * args.output_len)
            took = time.monotonic() - begun
            client.check(names, args.output_len)
            found |= {prefix + name: value for name, value in used.items()}
            found[f"{prefix}requests/s"] = count / took
            found |= client.row(names, prefix)
    return found


def table(runs: dict[str, list[Row]]) -> str:
    """Medians of each side, the first one's ratio to the others, and all runs."""
    first, *others = runs
    middle = {
        side: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for side, rows in runs.items()
    }
    lines = [f"{'per 1,000 output tokens':34}" + "".join(f"{side:>12}" for side in runs)]
    for key in middle[first]:
        cells = "".join(f"{middle[side][key]:12.4f}" for side in runs)
        ratios = " ".join(f"{middle[first][key] / middle[side][key]:.2f}" for side in others)
        every = " | ".join(" ".join(f"{row[key]:.4f}" for row in rows) for rows in runs.values())
        lines.append(f"{key:34}{cells}   ratio {ratios or '-'}   {every}")
    return "\n".join(lines)


def main() -> int:
    """Prints a table; every run's answers are checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="of each side, alternating")
    parser.add_argument("--requests", type=int, default=600, help="with so many in flight")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--paced-requests", type=int, default=0, help="at a rate, afterwards")
    parser.add_argument("--rate", type=float, default=8.0, help="requests/s of these")
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--against", type=Path, help="another checkout of vdisagg")
    parser.add_argument("--no-forwarder", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ours = ["-m", "vdisagg.control"]
    sides = {"controller": (ours, HERE.parent)}
    if args.against:
        sides["against"] = (ours, args.against.resolve())
    if not args.no_forwarder:
        sides["forwarder"] = ([str(HERE / "forwarder.py")], HERE.parent)
    runs: dict[str, list[Row]] = {side: [] for side in sides}
    for number in range(args.runs):
        for side, (words, source) in sides.items():
            print(f"run {number + 1} of {args.runs}: {side}", file=sys.stderr, flush=True)
            runs[side].append(measure(words, source, args))
    print(json.dumps(runs, indent=2) if args.json else table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
