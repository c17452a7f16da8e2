"""The two sides of the comparison: how each is started, where it answers, what its processes are.

Both run the same two engines: side B's command lines and environment are made from side A's plan,
so that model, engine arguments, KV transfer, CPU settings and the calmed NIXL thread are the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import processes

from vdisagg.bench.client import Target
from vdisagg.cluster import record
from vdisagg.plan.model import Instance, Plan

NAME = "peer"
MODEL = "tiny"
READY_S = 300.0
HERE = Path(__file__).parent
SWITCHES = HERE.parent / "vdisagg" / "launch" / "switches"

# float32, because bfloat16 is emulated on CPUs without AVX-512 or AMX, and then five times slower:
# the engines would hide what stands before them.
TOPOLOGY = """\
name: {name}
model: {model}
nodes:
  here: {{device: cpu}}
engine:
  args: {{max_model_len: 2048, dtype: float32, max_num_seqs: 64}}
prefill: {{node: here}}
decode: {{node: here}}
front_end: {{port: {port}}}
ports: {{first: {first}}}
"""


@dataclass(frozen=True)
class Running:
    """A side that answers."""

    target: Target
    sessions: dict[str, int]
    """Session ids of its processes, by name."""


@dataclass(frozen=True)
class Bench:
    """Where the benchmark keeps its files, and the first port it uses."""

    directory: Path
    model: Path
    router: Path
    first_port: int

    @property
    def topology(self) -> Path:
        """Side A's file, written on first use."""
        path = self.directory / "peer.yaml"
        if not path.exists():
            path.write_text(
                TOPOLOGY.format(
                    name=NAME, model=self.model, port=self.first_port, first=self.first_port + 10
                )
            )
        return path

    def vdisagg(self, *words: str) -> str:
        """Run our own command, with a state directory apart from the user's; its stdout."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("vdisagg")), *words],
            env={**os.environ, "XDG_STATE_HOME": str(self.directory)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"vdisagg {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def plan(self) -> Plan:
        """Side A's plan; starts nothing."""
        return msgspec.json.decode(self.vdisagg("check", str(self.topology), "--json"), type=Plan)


@contextmanager
def ours(bench: Bench) -> Iterator[Running]:
    """Side A: `vdisagg up`."""
    try:
        bench.vdisagg("up", str(bench.topology))
        found = record.read(bench.directory / "vdisagg" / NAME)
        if found is None:
            raise SystemExit("vdisagg up left no record")
        front_end = found.plan.front_end
        yield Running(
            Target(url=front_end.url, model=front_end.served_model_name),
            {name: started.pid for name, started in found.processes.items()},
        )
    finally:
        bench.vdisagg("down", "--name", NAME)


def full_engine(instance: Instance, front_end: tuple[str, ...], port: int) -> tuple[str, ...]:
    """`vllm serve` with an API of its own, and otherwise the words of the headless instance.

    `front_end`: words of the front end alone, for its arguments count for both sides.
    """
    alone = {"--headless": 1, "--data-parallel-address": 2, "--data-parallel-rpc-port": 2}
    words = list(instance.process.argv)
    for flag, count in alone.items():
        at = words.index(flag)
        del words[at : at + count]
    return (*words, *front_end, "--host", "127.0.0.1", "--port", str(port))


def front_end_words(plan: Plan) -> tuple[str, ...]:
    """Flags of the front end that no engine has, but for its place and what is our own."""
    place = {"--host", "--port", "--data-parallel-size-local", "--middleware"}
    words = plan.front_end.process.argv
    engine = set(plan.instances[0].process.argv) | place
    found: list[str] = []
    taking = False
    for word in words:
        if word.startswith("--"):
            taking = word not in engine
        if taking:
            found.append(word)
    return tuple(found)


@contextmanager
def theirs(bench: Bench) -> Iterator[Running]:
    """Side B: two full `vllm serve` and vllm-router before them."""
    plan = bench.plan()
    first = bench.first_port + 60
    started: dict[str, subprocess.Popen[bytes]] = {}
    urls: dict[str, str] = {}
    try:
        for place, instance in enumerate(plan.instances):
            env = {**instance.process.env, "PYTHONPATH": str(SWITCHES)}
            argv = full_engine(instance, front_end_words(plan), first + place)
            log = bench.directory / f"peer-{instance.name}.log"
            started[instance.name] = processes.start(argv, env, log)
            urls[instance.name] = f"http://127.0.0.1:{first + place}"
        for instance in plan.instances:
            _wait(f"{urls[instance.name]}/health", started[instance.name])
        router = bench.first_port + 70
        sides = [
            word
            for instance in plan.instances
            for word in (f"--{instance.role}", urls[instance.name])
        ]
        argv = (str(bench.router), "--vllm-pd-disaggregation", *sides, "--policy", "round_robin")
        place_words = ("--host", "127.0.0.1", "--port", str(router), "--log-level", "warning")
        metrics = ("--prometheus-port", str(router + 1))
        log = bench.directory / "peer-router.log"
        started["router"] = processes.start((*argv, *place_words, *metrics), {}, log)
        url = f"http://127.0.0.1:{router}"
        _wait(f"{url}/health", started["router"])
        _answered(url, plan.front_end.served_model_name)
        yield Running(
            Target(url=url, model=plan.front_end.served_model_name),
            {name: process.pid for name, process in started.items()},
        )
    finally:
        processes.end(started.values())


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(
                f"{process.args!r} ended with {process.returncode} before it was ready; "
                "its log is in the folder that --logs names"
            )
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    raise SystemExit(f"{url} did not answer within {READY_S:g} s")


def _answered(url: str, model: str) -> None:
    """One request through the pair: the first contact of two engines takes seconds."""
    body = {"model": model, "prompt": "Hello", "max_tokens": 4}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
