"""What the load generator itself costs: against a server that streams on a beat and keeps its own times.

    .venv/bin/python benchmarks/client.py
    .venv/bin/python benchmarks/client.py --rate 400 --tokens 16 --workers 2

Three loads, 45 s in all: 2,000 streams at once at 200 requests/s; short answers; dense streams. Of each: how
late requests were sent, how much later than the server the client saw first tokens, and the CPU time of
the client, which the last two divide into so much a request and so much a chunk. The server runs in
a process of its own; where cores are shared, what it was late by itself is told too. Rows say the
machine's load before them: figures from a busy machine are upper bounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec
from streams import Account

from vdisagg.bench import loop, workers
from vdisagg.bench.arrivals import offsets
from vdisagg.bench.asks import Ask
from vdisagg.bench.bodies import PATHS, body
from vdisagg.bench.client import Target
from vdisagg.bench.progress import Progress
from vdisagg.bench.report import Spread, spread
from vdisagg.bench.samples import Sample
from vdisagg.bench.worker import Item, Job

HERE = Path(__file__).parent
PROMPT_LEN = 1000


class Load(msgspec.Struct, frozen=True):
    """What is sent, and how the server answers."""

    name: str
    rate_per_s: float
    seconds: float
    tokens: int
    ttft_s: float
    gap_s: float


LOADS: tuple[Load, ...] = (
    # Each stream lasts 10 s, so that 200/s make 2,000 at once, from the tenth second on.
    Load("2,000 streams", 200.0, 13.0, 32, 0.1, 9.9 / 31),
    Load("short answers", 200.0, 5.0, 1, 0.1, 0.05),
    Load("dense streams", 40.0, 5.0, 200, 0.1, 0.02),
)


class Row(msgspec.Struct):
    """What came of one load. Seconds, but for what is named otherwise."""

    load: Load
    workers: int
    machine_load: float
    """Of the last minute, before this run."""
    requests: int
    failed: int
    most_streams: int
    asked_rate_per_s: float
    achieved_rate_per_s: float
    late: Spread
    overhead: Spread
    """TTFT as measured less TTFT as served: connecting, writing, waking, parsing."""
    server_late: Spread
    chunks_per_s: float
    """While requests were sent and answered."""
    cpu_s: float
    cpu_share: float
    """Of one core, of all the client's processes together."""


@contextmanager
def served(load: Load) -> Iterator[str]:
    """The URL of a server that answers so."""
    words = [
        sys.executable,
        str(HERE / "streams.py"),
        f"--ttft={load.ttft_s}",
        f"--gap={load.gap_s}",
    ]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin
    assert server.stdout
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()
        server.wait()


def cpu_s() -> float:
    """Of this process and its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(load: Load, processes: int) -> Row:
    """Run one load. Raises SystemExit when a request failed."""
    count = round(load.rate_per_s * load.seconds)
    due = offsets(count, rate_per_s=load.rate_per_s, burstiness=1.0, rng=Random(0))
    ask = Ask(list(range(1000, 1000 + PROMPT_LEN)), load.tokens)
    text = body("m", ask, endpoint="completions", running_usage=True)
    items = [Item(i, f"r-{i}", due_s, text, load.tokens) for i, due_s in enumerate(due)]
    machine_load = os.getloadavg()[0]
    with served(load) as url:
        job = Job(Target(url=url, model="m"), PATHS["completions"], items)
        began = 0.0, 0.0

        def on_start(start: float) -> None:
            nonlocal began
            began = start, cpu_s()

        samples, _ = loop.run(
            workers.run(job, workers=processes, progress=Progress(count), on_start=on_start)
        )
        wall, used = time.monotonic() - began[0], cpu_s() - began[1]
        with urllib.request.urlopen(f"{url}/served") as answer:
            account = msgspec.json.decode(answer.read(), type=Account)
    return _row(load, processes, machine_load, samples, account, wall, used)


def _row(
    load: Load,
    processes: int,
    machine_load: float,
    samples: list[Sample],
    account: Account,
    wall_s: float,
    cpu: float,
) -> Row:
    good = [sample for sample in samples if sample.failure is None]
    if len(good) < len(samples):
        first = next(sample for sample in samples if sample.failure)
        raise SystemExit(f"{load.name}: {first.failure}: {first.detail}")
    ours = {sample.request_id: sample.ttft_s for sample in good}
    overhead = spread(
        ttft_s - (each.first - each.whole)
        for name, each in account.requests.items()
        if (ttft_s := ours[name]) is not None
    )
    late = spread(sample.late_s for sample in samples)
    server_late = spread(each.late_s for each in account.requests.values())
    assert late
    assert overhead
    assert server_late
    sent = sorted(sample.sent_s for sample in samples)
    return Row(
        load=load,
        workers=processes,
        machine_load=machine_load,
        requests=len(samples),
        failed=0,
        most_streams=account.most_streams,
        asked_rate_per_s=load.rate_per_s,
        achieved_rate_per_s=(len(sent) - 1) / (sent[-1] - sent[0]),
        late=late,
        overhead=overhead,
        server_late=server_late,
        chunks_per_s=sum(sample.output_tokens for sample in good) / wall_s,
        cpu_s=cpu,
        cpu_share=cpu / wall_s,
    )


def costs(rows: list[Row]) -> tuple[float, float] | None:
    """CPU seconds of a request and of a chunk, out of the two loads that differ most in chunks."""
    few = min(rows, key=lambda row: row.load.tokens)
    many = max(rows, key=lambda row: row.load.tokens)
    if few.load.tokens == many.load.tokens:
        return None
    each = [row.cpu_s / row.requests for row in (few, many)]
    chunk = (each[1] - each[0]) / (many.load.tokens - few.load.tokens)
    return each[0] - chunk * few.load.tokens, chunk


def table(rows: list[Row]) -> str:
    """For people; milliseconds."""

    def ms(values: Spread) -> str:
        return f"{values.median * 1e3:.1f} {values.p99 * 1e3:.1f} {values.max * 1e3:.1f}"

    lines = ["| | " + " | ".join(row.load.name for row in rows) + " |"]
    lines.append("|---" * (len(rows) + 1) + "|")
    facts: dict[str, Callable[[Row], str]] = {
        "requests/s asked, sent": lambda r: f"{r.asked_rate_per_s:g}, {r.achieved_rate_per_s:.2f}",
        "streams at once": lambda r: f"{r.most_streams}",
        "chunks/s": lambda r: f"{r.chunks_per_s:.0f}",
        "client's processes": lambda r: f"{r.workers}",
        "of one core": lambda r: f"{r.cpu_share:.0%}",
        "sent late by, ms: median p99 max": lambda r: ms(r.late),
        "TTFT over the server's, ms": lambda r: ms(r.overhead),
        "server's writes late by, ms": lambda r: ms(r.server_late),
        "load of the machine before": lambda r: f"{r.machine_load:.1f}",
    }
    for name, tell in facts.items():
        lines.append(f"| {name} | " + " | ".join(tell(row) for row in rows) + " |")
    return "\n".join(lines)


def additions_s() -> float:
    """How quick the machine's Python is: ten million additions."""
    began = time.process_time()
    total = 0
    for _ in range(10_000_000):
        total += 1  # noqa: SIM113 (a counter is what is timed)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, help="one load of your own instead")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--ttft", type=float, default=0.1)
    parser.add_argument("--gap", type=float, default=0.05)
    parser.add_argument("--workers", type=int, help="processes (as `vdisagg bench` would choose)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    loads = LOADS
    if args.rate:
        own = Load("own", args.rate, args.seconds, args.tokens, args.ttft, args.gap)
        loads = (own,)
    rows = []
    for load in loads:
        chosen = args.workers or workers.needed(
            rate_per_s=load.rate_per_s,
            requests=math.ceil(load.rate_per_s * load.seconds),
            output_len=load.tokens,
            max_in_flight=None,
            cores=workers.cores(),
        )
        rows.append(measure(load, chosen))
    each = costs(rows)
    if args.json:
        print(
            json.dumps({"rows": msgspec.to_builtins(rows), "request_chunk_cpu_s": each}, indent=2)
        )
        return
    print(table(rows))
    if each:
        print(f"\nCPU: {each[0] * 1e6:.0f} µs a request, {each[1] * 1e6:.1f} µs a chunk")
    print(
        f"{platform.processor() or platform.machine()}, {workers.cores()} cores, "
        f"Python {platform.python_version()}; ten million additions take {additions_s():.2f} s of CPU"
    )


if __name__ == "__main__":
    main()
