"""vdisagg against vllm-router: the same two engines behind each, in alternating runs.

    make bench-peer                       # makes the peer's environment, then runs this
    .venv/bin/python benchmarks/peer.py --runs 1 --json

Each run starts a side, warms it up, measures requests/s with 32 requests in flight, then latencies
at 8 requests/s, and stops it. CPU seconds are those of every process of the side over the first
measurement, per 1,000 output tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import processes
import sides

from vdisagg import __version__
from vdisagg.bench.options import Options
from vdisagg.bench.report import Report, Spread
from vdisagg.bench.run import run
from vdisagg.errors import Error

ROOT = Path(__file__).parent.parent
INPUT_LEN = 64
OUTPUT_LEN = 32
IN_FLIGHT = 32
RATE = 8.0
SIDES = {"vdisagg": sides.ours, "vllm-router": sides.theirs}

Row = dict[str, float]
"""One run's numbers, by what they are; `cpu:NAME` for each process."""


def measure(side: sides.Running, args: argparse.Namespace, seed: int) -> Row:
    """Warm up, throughput, latency. Raises SystemExit when a request failed."""

    def load(requests: int, prompt_seed: int, *, rate: float = math.inf) -> Report:
        options = Options(
            rate_per_s=rate,
            requests=requests,
            max_in_flight=IN_FLIGHT if math.isinf(rate) else None,
            input_len=INPUT_LEN,
            output_len=OUTPUT_LEN,
            seed=seed,
            prompt_seed=prompt_seed,
            warmup=0,
            running_usage=args.running_usage,
        )
        found = asyncio.run(run(options, side.target, clock=time.time)).report
        if found.failed:
            kinds = ", ".join(f"{f.count} {f.kind}: {f.example}" for f in found.failures)
            raise SystemExit(f"{side.target.url}: {found.failed} requests failed: {kinds}")
        return found

    load(args.warmup, 3 * seed)
    before = processes.cpu_s(side.sessions)
    full = load(args.requests, 3 * seed + 1)
    after = processes.cpu_s(side.sessions)
    paced = load(args.paced_requests, 3 * seed + 2, rate=RATE)
    thousands = full.output_tokens / 1000
    cpu = {f"cpu:{name}": (after[name] - before[name]) / thousands for name in after}
    ttft, tpot, busy_ttft = paced.ttft, paced.tpot, full.ttft
    assert ttft
    assert tpot
    assert busy_ttft
    return {
        "requests/s": full.requests_per_s,
        "output tokens/s": full.output_tokens_per_s,
        **_milliseconds("TTFT at 32", busy_ttft),
        **_milliseconds("TTFT", ttft),
        **_milliseconds("TPOT", tpot),
        "cpu:all but client": sum(cpu.values()) - cpu["cpu:client"],
        **cpu,
    }


def _milliseconds(name: str, spread: Spread) -> Row:
    return {f"{name} mean ms": spread.mean * 1000, f"{name} p99 ms": spread.p99 * 1000}


def machine(router: Path) -> dict[str, str]:
    """Where and with what this was measured."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    asked = "import importlib.metadata as m; print(m.version('vllm-router'))"
    peer = subprocess.run(
        [router.with_name("python"), "-c", asked], capture_output=True, text=True, check=False
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": f"{model}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "vllm": importlib.metadata.version("vllm"),
        "vdisagg": __version__,
        "vllm-router": peer.stdout.strip(),
    }


def medians(rows: list[Row]) -> Row:
    """The median over the runs, of each number."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def table(runs: dict[str, list[Row]]) -> str:
    """Medians, the ratio of ours to theirs, and all runs."""
    middle = {side: medians(rows) for side, rows in runs.items()}
    a, b = SIDES
    lines = [f"{'':28}{a:>12}{b:>14}{'ratio':>8}   runs of {a} | of {b}"]
    for key in dict.fromkeys([*middle[a], *middle[b]]):
        cells = [f"{middle[side][key]:.3f}" if key in middle[side] else "-" for side in (a, b)]
        both = all(middle[side].get(key) for side in (a, b))
        ratio = f"{middle[a][key] / middle[b][key]:.2f}" if both else ""
        every = " | ".join(
            " ".join(f"{row[key]:.3f}" for row in runs[side] if key in row) for side in (a, b)
        )
        lines.append(f"{key:28}{cells[0]:>12}{cells[1]:>14}{ratio:>8}   {every}")
    lines.append("cpu: seconds per 1,000 output tokens, with 32 requests in flight")
    return "\n".join(lines)


def main() -> int:
    """Exit code 1 when a side does not start or a request fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="of each side, alternating")
    parser.add_argument("--requests", type=int, default=1000, help="with 32 in flight")
    parser.add_argument("--paced-requests", type=int, default=240, help="at 8 requests/s")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--only", choices=SIDES, help="measure one side alone")
    parser.add_argument("--model", type=Path, default=ROOT / ".cache" / "models" / "tiny")
    parser.add_argument("--router", type=Path, default=ROOT / ".venv-peer/bin/vllm-router")
    parser.add_argument("--first-port", type=int, default=23500)
    parser.add_argument(
        "--running-usage",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="have each chunk tell its tokens' number, on both sides",
    )
    parser.add_argument("--logs", type=Path, help="keep logs and state in this folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not args.model.is_dir():
        parser.error(f"{args.model} is missing; next: make models")
    if not args.router.exists():
        parser.error(f"{args.router} is missing; next: make bench-peer")

    runs: dict[str, list[Row]] = {side: [] for side in SIDES if args.only in (None, side)}
    with tempfile.TemporaryDirectory(prefix="peer-") as scratch:
        directory = (args.logs or Path(scratch)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        bench = sides.Bench(directory, args.model.resolve(), args.router, args.first_port)
        try:
            for number in range(args.runs):
                for name, rows in runs.items():
                    print(f"run {number + 1} of {args.runs}: {name}", file=sys.stderr, flush=True)
                    with SIDES[name](bench) as side:
                        rows.append(measure(side, args, seed=number))
        except Error as exc:
            print(f"error: {exc}", file=sys.stderr)
            return 1
    where = machine(args.router)
    if args.json:
        middle = {side: medians(rows) for side, rows in runs.items()}
        print(json.dumps({"machine": where, "medians": middle, "runs": runs}, indent=2))
    elif args.only:
        for key, value in medians(runs[args.only]).items():
            print(f"{key:28}{value:12.3f}   {' '.join(f'{r[key]:.3f}' for r in runs[args.only])}")
    else:
        print("\n".join(f"{key}: {value}" for key, value in where.items()))
        print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
