"""Prefill and decode on two hosts, launched over SSH, joined by nothing but a network."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from hosts.bed import Bed, until
from hosts.network import Network, missing
from real.ask import Answer, answer, random_prompt
from real.conftest import BIN, MODELS, B

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

LENGTHS = [1, 5, B - 1, B, B + 1, 2 * B, 300]
URL = "http://127.0.0.1:8000"
# Says HELLO to every address given, and an engine's last words, as somebody who is no node.
STRANGER = """
import sys, time, zmq
context = zmq.Context()
for address in sys.argv[1:]:
    for kind in (zmq.DEALER, zmq.PUSH):
        socket = context.socket(kind)
        if kind == zmq.DEALER:
            socket.setsockopt(zmq.IDENTITY, b"\\0\\0")
        socket.connect(address)
        socket.send(b"\\x83\\xa6status\\xa5HELLO\\xa5local\\xc2\\xa8headless\\xc3")
        socket.send(b"ENGINE_CORE_DEAD")
print("said", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module", params=["direct", "tunnel"])
def control(request: pytest.FixtureRequest) -> str:
    """How engines and controller are joined."""
    return str(request.param)


@pytest.fixture(scope="module")
def bed(control: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """1P1D on the tiny model; front end and controller here, prefill on n1, decode on n2."""
    with Network(tmp_path_factory.mktemp("hosts")) as network:
        bed = Bed(network, vllm=BIN / "vllm")
        engine = {
            "args": {
                "max_model_len": 1024,
                "dtype": "float32",
                "max_num_seqs": 32,
                "num_gpu_blocks_override": 256,
            }
        }
        file = bed.topology(
            bed.nodes(2),
            model=str(MODELS / "tiny"),
            control=control,
            engine=engine,
            heartbeat={"interval_s": 2, "misses": 2},
            timeouts={"launch_s": 300, "stop_s": 15, "request_s": 20},
        )
        try:
            bed.vdisagg("up", file, limit_s=400)
            yield bed
        finally:
            bed.vdisagg("down")
            bed.nothing_is_left()


def completion(url: str, model: str, prompt: list[int], *, stream: bool = False) -> Answer:
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    return answer(url, "/v1/completions", body, stream=stream)


def ours(bed: Bed, prompt: list[int], *, stream: bool = False) -> Answer:
    with bed.here.entered():
        return completion(URL, "tiny", prompt, stream=stream)


def test_each_engine_is_on_its_own_host(bed: Bed, control: str) -> None:
    n1, n2 = (bed.network.hosts[name] for name in ("n1", "n2"))
    for host, role in ((n1, "kv_producer"), (n2, "kv_consumer")):
        assert sum(role in words for words in host.processes().values()) == 1
    assert bed.status()["healthy"] is True
    listening = bed.here.run("ss", "-Htln").stdout
    assert (bed.here.address in listening) == (control == "direct"), listening


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("length", LENGTHS)
def test_token_ids_equal_a_plain_engines(
    bed: Bed, plain_tiny: str, length: int, stream: bool
) -> None:
    for seed in range(2):
        prompt = random_prompt(length, f"hosts {seed}")
        assert ours(bed, prompt, stream=stream) == completion(
            plain_tiny, "plain", prompt, stream=stream
        )


def test_a_third_host_is_turned_away_and_the_engines_are_safe(
    bed: Bed, control: str, plain_tiny: str
) -> None:
    """With a tunnel there is nothing that it could dial."""
    stranger = bed.network.host("stranger", "198.18.0.99/24")
    plan = json.loads((bed.here.home / ".local/state/vdisagg/net/cluster.json").read_text())["plan"]
    addresses = [
        f"tcp://{bed.here.address}:{instance[which]['port']}"
        for instance in plan["instances"]
        for which in ("handshake", "requests", "outputs")
    ]
    with stranger.start(sys.executable, "-c", STRANGER, *addresses) as dialling:
        assert dialling.stdout is not None
        assert dialling.stdout.readline() == "said\n"
        refused = 6 if control == "direct" else 0
        until(lambda: bed.vdisagg("events").stdout.count("turned away 198.18.0.99") == refused)
        prompt = random_prompt(300, "stranger")
        assert ours(bed, prompt) == completion(plain_tiny, "plain", prompt)
        assert bed.status()["healthy"] is True
        stranger.power_off()


def test_a_host_that_is_cut_off_heals_once_it_is_back(bed: Bed, plain_tiny: str) -> None:
    n1 = bed.network.hosts["n1"]
    n1.cut()
    until(lambda: bed.status()["healthy"] is False, limit_s=60)
    n1.restore()
    until(lambda: bed.status()["healthy"] is True, lambda: str(bed.status()), limit_s=120)
    prompt = random_prompt(300, "healed")
    assert ours(bed, prompt) == completion(plain_tiny, "plain", prompt)
