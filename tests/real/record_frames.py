"""Records what real engines and a real front end send, for tests/data/frames-VERSION.json.

    .venv/bin/python tests/real/record_frames.py           # into tests/data
    .venv/bin/python tests/real/record_frames.py FILE      # elsewhere, to look at

Starts the processes of topologies/tiny.yaml with a controller in this process that writes down every
message it receives, asks a few questions, and ends them again. To be run when a vLLM version is
added; tests/control/test_recorded_frames.py then holds the fakes against the file.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from real.ask import post, random_prompt  # noqa: E402  # the path above comes first
from vdisagg.control.controller import Controller  # noqa: E402
from vdisagg.control.sockets import Sockets  # noqa: E402
from vdisagg.launch.here import here_for, taken_ports  # noqa: E402
from vdisagg.launch.local import LocalRunner  # noqa: E402
from vdisagg.launch.sight import is_healthy  # noqa: E402
from vdisagg.plan.make import make_plan  # noqa: E402
from vdisagg.plan.model import Plan  # noqa: E402
from vdisagg.topology.load import load  # noqa: E402

Recorded = dict[str, list[list[str]]]


def recording(kind_of: dict[int, str], recorded: Recorded) -> Any:
    """`Sockets.messages`, that keeps what it yields under the socket's purpose; where that is "", not."""
    read = Sockets.messages

    def messages(self: Sockets, socket: zmq.Socket[bytes], *, frames: int) -> Iterator[list[bytes]]:
        for message in read(self, socket, frames=frames):
            purpose = kind_of.get(id(socket), "front end")
            if purpose:
                recorded.setdefault(purpose, []).append(
                    [base64.b64encode(frame).decode() for frame in message]
                )
            yield message

    return messages


def ask_questions(url: str) -> None:
    """One of each kind that the fakes imitate."""
    prompt = random_prompt(300)
    for options in (
        {"max_tokens": 3},
        {"max_tokens": 1},
        {"max_tokens": 3, "logprobs": 2},
        {"max_tokens": 2, "prompt_logprobs": 1},
        {"max_tokens": 4, "stop": ["zzz"], "min_tokens": 2},
    ):
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, **options}
        status, reply = post(url, "/v1/completions", body)
        assert status == 200, reply


def wait_for(plan: Plan) -> None:
    """Until the front end has a pair to send requests to, and serves HTTP."""
    deadline = time.monotonic() + plan.timeouts.launch_s
    while not is_healthy(plan.front_end.url):
        assert time.monotonic() < deadline, "they do not come up; their logs say why"
        time.sleep(0.2)


def main() -> None:
    topology = load(ROOT / "topologies" / "tiny.yaml")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        here = here_for(topology)
        plan = make_plan(topology, here, busy=taken_ports(topology.name))
        controller = Controller(plan, directory, rng=random.Random(0))
        kind_of = {id(controller._admission._socket): ""}  # libzmq asks there, and nobody else
        for instance, point in controller._endpoints.items():
            for purpose in ("handshake", "requests", "outputs"):
                kind_of[id(getattr(point, f"_{purpose}"))] = f"{instance} {purpose}"
        recorded: Recorded = {}
        Sockets.messages = recording(kind_of, recorded)  # type: ignore[method-assign]
        thread = threading.Thread(target=controller.run)
        thread.start()
        runner = LocalRunner()
        processes = [p for p in plan.processes() if p.kind != "controller"]
        try:
            for process in processes:
                runner.start(process, {}, plan.timeouts.stop_s)
            wait_for(plan)
            ask_questions(plan.front_end.url)
        finally:
            for process in reversed(processes):
                runner.stop(process, plan.timeouts.stop_s)
            controller.stop()
            thread.join()
    version = controller.fleet.engines["p0"].ready.vllm_version  # type: ignore[union-attr]
    target = ROOT / "tests" / "data" / f"frames-{version}.json"
    target = Path(sys.argv[1]) if sys.argv[1:] else target
    target.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"{target}: {sum(map(len, recorded.values()))} messages")


if __name__ == "__main__":
    main()
