"""vdisagg bench against `vllm bench serve`: the same server, the same load, in turns; do their figures agree?

    vdisagg up topologies/demo.yaml
    .venv/bin/python benchmarks/agree.py --name demo --tokenizer .cache/models/SmolLM2-135M-Instruct

Each round runs one of them and then the other, in an order that changes from round to round. Printed is a
table in Markdown: of each metric the rounds' values by either and the ratio of their
medians. Rounds of the same tool differ too; by how much is what the ratio is to be held against. Poisson
arrivals are drawn by each tool anew: with --even both send on the same beat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vdisagg.bench.targets import cluster_target

BIN = Path(sys.executable).parent
EVEN = "1e9"
"""As a burstiness: gaps that are equal to all digits that count."""
METRICS: dict[str, tuple[Callable[[dict[str, Any]], float], str]] = {
    "TTFT mean (ms)": (lambda r: r["ttft"]["mean"] * 1000, "mean_ttft_ms"),
    "TTFT p50 (ms)": (lambda r: r["ttft"]["median"] * 1000, "median_ttft_ms"),
    "TTFT p99 (ms)": (lambda r: r["ttft"]["p99"] * 1000, "p99_ttft_ms"),
    "TPOT mean (ms)": (lambda r: r["tpot"]["mean"] * 1000, "mean_tpot_ms"),
    "TPOT p99 (ms)": (lambda r: r["tpot"]["p99"] * 1000, "p99_tpot_ms"),
    "ITL mean (ms)": (lambda r: r["itl"]["mean"] * 1000, "mean_itl_ms"),
    "ITL p99 (ms)": (lambda r: r["itl"]["p99"] * 1000, "p99_itl_ms"),
    "E2E mean (ms)": (lambda r: r["e2e"]["mean"] * 1000, "mean_e2el_ms"),
    "requests/s": (lambda r: r["requests_per_s"], "request_throughput"),
    "output tokens/s": (lambda r: r["output_tokens_per_s"], "output_throughput"),
    "input tokens": (lambda r: r["prompt_tokens"], "total_input_tokens"),
}
"""Where either tool's result has it."""


def ours(args: argparse.Namespace, seed: int) -> list[float]:
    """One run of `vdisagg bench`."""
    words = [
        *(str(BIN / "vdisagg"), "bench", "--name", args.name, "--json"),
        *("--rate", str(args.rate), "--num-requests", str(args.requests), "--seed", str(seed)),
        *("--burstiness", "inf" if args.even else "1"),
        *("--input-len", str(args.input_len), "--output-len", str(args.output_len)),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"vdisagg bench failed:\n{done.stderr}")
    report = json.loads(done.stdout)["runs"][0]["report"]
    return [take(report) for take, _ in METRICS.values()]


def theirs(args: argparse.Namespace, seed: int) -> list[float]:
    """One run of `vllm bench serve`."""
    target = cluster_target(args.name)
    with tempfile.TemporaryDirectory() as directory:
        words = [
            *(str(BIN / "vllm"), "bench", "serve", "--backend", "openai", "--disable-tqdm"),
            *("--base-url", target.url, "--model", target.model, "--tokenizer", args.tokenizer),
            *("--dataset-name", "random", "--random-input-len", str(args.input_len)),
            *("--random-output-len", str(args.output_len), "--ignore-eos", "--temperature", "0"),
            *("--num-prompts", str(args.requests), "--request-rate", str(args.rate)),
            *("--num-warmups", "2", "--seed", str(seed), "--save-result"),
            *("--burstiness", EVEN if args.even else "1"),
            *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"),
            *("--result-dir", directory, "--result-filename", "result.json"),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"vllm bench serve failed:\n{done.stdout}{done.stderr}")
        result = json.loads((Path(directory) / "result.json").read_text())
    return [result[key] for _, key in METRICS.values()]


def table(sides: dict[str, list[list[float]]]) -> str:
    """In Markdown: each round's value, and the ratio of medians."""
    names = list(sides)
    lines = [f"| | {' | '.join(names)} | ratio of medians |", "|---" * (len(names) + 2) + "|"]
    for number, metric in enumerate(METRICS):
        columns = [[run[number] for run in runs] for runs in sides.values()]
        cells = [", ".join(f"{value:.4g}" for value in column) for column in columns]
        first, second = map(statistics.median, columns)
        lines.append(f"| {metric} | {' | '.join(cells)} | {first / second:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", default="demo", help="the cluster")
    parser.add_argument("--tokenizer", required=True, help="the model's folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument(
        "--even", action="store_true", help="an even beat: the same arrivals for both"
    )
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=32)
    args = parser.parse_args()
    sides: dict[str, list[list[float]]] = {"vdisagg bench": [], "vllm bench serve": []}
    tools = {"vdisagg bench": ours, "vllm bench serve": theirs}
    for seed in range(args.rounds):
        order = list(tools) if seed % 2 == 0 else list(reversed(tools))
        for name in order:
            print(f"round {seed + 1}: {name}", file=sys.stderr)
            sides[name].append(tools[name](args, seed))
    print(table(sides))


if __name__ == "__main__":
    main()
