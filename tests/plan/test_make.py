"""Whole command lines as literals, and what must hold for every plan."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from vdisagg.errors import UsageError
from vdisagg.plan.make import Here, make_plan
from vdisagg.plan.model import Address, Plan, Restart, Secret
from vdisagg.topology.load import load

if TYPE_CHECKING:
    from collections.abc import Callable

    Planned = Callable[..., Plan]

ROOT = Path(__file__).parent.parent.parent
HERE = Here("/venv/bin/python", "/venv/bin/vllm", Path("/state/t"), Path("/home/me/.vdisagg"))
CPU = """\
model: /models/smol
nodes: {here: {device: cpu}}
engine: {args: {max_model_len: 2048, dtype: bfloat16, max_num_seqs: 32}}
prefill: {node: here}
decode: {node: here}
"""
GPU = """\
model: org/model-8b
nodes: {here: {gpus: 8, secrets: [HF_TOKEN]}}
engine: {args: {tensor_parallel_size: 2, kv_cache_dtype: fp8, reasoning_parser: qwen3}}
prefill: {args: {max_num_batched_tokens: 8192}}
decode: {count: 1}
front_end:
  host: 0.0.0.0
  port: 9000
  api_server_count: 2
  args: {enable_auto_tool_choice: true, tool_call_parser: hermes}
  api_key: {file: /keys/api}
"""
MANY = """\
model: /models/smol
nodes: {here: {device: cpu}}
prefill: {count: 2}
decode: {count: 2}
"""


def transfer(role: str, more: str = "", lease_s: int = 30) -> str:
    """The value of `--kv-transfer-config`."""
    return (
        f'{{"kv_connector":"NixlConnector","kv_role":"{role}","kv_load_failure_policy":"fail",'
        f'"kv_connector_extra_config":{{"kv_lease_duration":{lease_s}}}{more}}}'
    )


def test_the_whole_prefill_engine_of_a_cpu_plan(planned: Planned) -> None:
    p0 = planned(CPU).instances[0]
    assert p0.process.argv == (
        "/venv/bin/vllm",
        "serve",
        "/models/smol",
        *("--served-model-name", "smol"),
        "--headless",
        *("--data-parallel-address", "127.0.0.1"),
        *("--data-parallel-rpc-port", "21000"),
        *("--kv-transfer-config", transfer("kv_producer", ',"kv_buffer_device":"cpu"')),
        "--enforce-eager",
        *("--distributed-executor-backend", "uni"),
        *("--max-model-len", "2048"),
        *("--dtype", "bfloat16"),
        *("--max-num-seqs", "32"),
    )
    assert p0.process.env == {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "/home/me/.vdisagg/t/p0/switches",
        "PYTHONUNBUFFERED": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "UCX_TLS": "tcp,self,shm",
        "VDISAGG_KEEP_AFFINITY": "1",
        "VDISAGG_NIXL_PROGRESS_DELAY_US": "1000",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "21003",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }
    assert p0.process.directory == "/home/me/.vdisagg/t/p0"
    assert p0.process.switches
    assert p0.gpus == ()
    assert (p0.handshake, p0.requests, p0.outputs) == tuple(
        Address("127.0.0.1", port) for port in (21000, 21001, 21002)
    )
    assert p0.connector_ports == (21003,)


def test_the_decode_engine_differs_in_role_and_ports_only(planned: Planned) -> None:
    p0, d0 = planned(CPU).instances
    swap = {
        "21000": "21004",
        transfer("kv_producer", ',"kv_buffer_device":"cpu"'): transfer(
            "kv_consumer", ',"kv_buffer_device":"cpu"'
        ),
    }
    assert d0.process.argv == tuple(swap.get(word, word) for word in p0.process.argv)
    assert d0.process.env == p0.process.env | {
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "21007",
        "PYTHONPATH": "/home/me/.vdisagg/t/d0/switches",
    }


def test_the_whole_front_end_and_controller_of_a_cpu_plan(planned: Planned) -> None:
    plan = planned(CPU)
    assert plan.front_end.process.argv == (
        "/venv/bin/vllm",
        "serve",
        "/models/smol",
        *("--served-model-name", "smol"),
        *("--host", "127.0.0.1"),
        *("--port", "8000"),
        *("--data-parallel-size-local", "0"),
        *("--middleware", "vdisagg_ids.RequestIds"),
        *("--middleware", "vdisagg_health.Health"),
        *("--data-parallel-address", "127.0.0.1"),
        *("--data-parallel-rpc-port", "21008"),
        "--enable-prompt-tokens-details",
        *("--max-model-len", "2048"),
        *("--dtype", "bfloat16"),
    )
    assert plan.front_end.process.env == {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "/home/me/.vdisagg/t/front-end/switches",
        "PYTHONUNBUFFERED": "1",
        "VDISAGG_CHANNEL": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }
    assert plan.front_end.process.switches
    assert plan.front_end.url == "http://127.0.0.1:8000"
    assert plan.controller.argv == ("/venv/bin/python", "-m", "vdisagg.control", "/state/t")
    assert plan.controller.env == {"PYTHONUNBUFFERED": "1"}
    assert plan.controller.directory == "/home/me/.vdisagg/t/controller"
    assert not plan.controller.switches


def test_the_whole_gpu_plan_with_tensor_parallel_2(planned: Planned) -> None:
    plan = planned(GPU)
    p0, d0 = plan.instances
    common = (
        "/venv/bin/vllm",
        "serve",
        "org/model-8b",
        *("--served-model-name", "model-8b"),
        "--headless",
        *("--data-parallel-address", "127.0.0.1"),
    )
    assert p0.process.argv == (
        *common,
        *("--data-parallel-rpc-port", "21000"),
        *("--kv-transfer-config", transfer("kv_producer")),
        *("--tensor-parallel-size", "2"),
        *("--kv-cache-dtype", "fp8"),
        *("--reasoning-parser", "qwen3"),
        *("--max-num-batched-tokens", "8192"),
    )
    assert d0.process.argv == (
        *common,
        *("--data-parallel-rpc-port", "21004"),
        *("--kv-transfer-config", transfer("kv_consumer")),
        *("--tensor-parallel-size", "2"),
        *("--kv-cache-dtype", "fp8"),
        *("--reasoning-parser", "qwen3"),
    )
    env = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "21003",
        "VLLM_NO_USAGE_STATS": "1",
    }
    assert p0.process.env == env
    assert d0.process.env == env | {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "21007",
    }
    assert (p0.gpus, d0.gpus) == ((0, 1), (2, 3))
    assert not p0.process.switches
    assert p0.process.secrets == (Secret("HF_TOKEN", from_env="HF_TOKEN"),)
    front = plan.front_end.process
    assert front.argv == (
        "/venv/bin/vllm",
        "serve",
        "org/model-8b",
        *("--served-model-name", "model-8b"),
        *("--host", "0.0.0.0"),
        *("--port", "9000"),
        *("--data-parallel-size-local", "0"),
        *("--middleware", "vdisagg_ids.RequestIds"),
        *("--middleware", "vdisagg_health.Health"),
        *("--data-parallel-address", "127.0.0.1"),
        *("--data-parallel-rpc-port", "21008"),
        *("--api-server-count", "2"),
        "--enable-prompt-tokens-details",
        *("--reasoning-parser", "qwen3"),
        "--enable-auto-tool-choice",
        *("--tool-call-parser", "hermes"),
    )
    assert front.env == {
        "PYTHONPATH": "/home/me/.vdisagg/t/front-end/switches",
        "PYTHONUNBUFFERED": "1",
        "VDISAGG_CHANNEL": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    assert front.secrets == (
        Secret("HF_TOKEN", from_env="HF_TOKEN"),
        Secret("VLLM_API_KEY", from_file="/keys/api"),
    )
    assert plan.front_end.url == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("true", ["--x-y"]),
        ("false", ["--no-x-y"]),
        ("2", ["--x-y", "2"]),
        ("0.5", ["--x-y", "0.5"]),
        ("-1", ["--x-y", "-1"]),
        ("'-a'", ["--x-y=-a"]),
        ("a b", ["--x-y", "a b"]),
        ("[1, a, {b: c}]", ["--x-y", "1", "a", '{"b":"c"}']),
        ("{a: {b_c: [1, true, null]}}", ["--x-y", '{"a":{"b_c":[1,true,null]}}']),
        ("null", []),
    ],
)
def test_pass_through_flags_by_kind_of_value(
    planned: Planned, value: str, words: list[str]
) -> None:
    with_flag = planned(CPU.replace("{node: here}", f"{{args: {{x_y: {value}}}}}", 1))
    plain = planned(CPU)
    extra = with_flag.instances[0].process.argv[len(plain.instances[0].process.argv) :]
    assert list(extra) == words
    assert with_flag.instances[1].process == plain.instances[1].process


def test_a_switch_without_a_no_form_is_left_out_when_false(planned: Planned) -> None:
    plan = planned(CPU.replace("{node: here}", "{args: {disable_log_stats: false}}", 1))
    assert not [word for word in plan.instances[0].process.argv if "log-stats" in word]


def test_what_the_user_says_wins_over_the_cpu_defaults(planned: Planned) -> None:
    plan = planned("""\
        model: /m
        nodes: {here: {device: cpu, env: {OMP_NUM_THREADS: 4, PYTHONPATH: /mine}}}
        engine: {env: {VLLM_CPU_KVCACHE_SPACE: 2}}
        prefill: {args: {enforce_eager: false}, env: {UCX_TLS: tcp}}
        decode: {args: {enforce-eager: null, pipeline_parallel_size: 2}}
        """)
    p0, d0 = (instance.process for instance in plan.instances)
    assert "--no-enforce-eager" in p0.argv
    assert p0.env["UCX_TLS"] == "tcp"
    assert p0.env["OMP_NUM_THREADS"] == "4"
    assert p0.env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert p0.env["PYTHONPATH"] == "/home/me/.vdisagg/t/p0/switches:/mine"
    # The CPU executor dies when it is eager and pipelined.
    assert d0.argv[-2:] == ("--pipeline-parallel-size", "2")
    assert "--enforce-eager" not in d0.argv
    # A compiler that is wanted is left alone, and a model over several processes has workers.
    assert "TORCH_COMPILE_DISABLE" not in p0.env.keys() | d0.env.keys()
    assert "uni" not in d0.argv
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in d0.env


def test_an_existing_pythonpath_stays_behind_the_switches(planned: Planned) -> None:
    plan = planned(CPU, dataclasses.replace(HERE, pythonpath="/a:/b"))
    assert plan.instances[0].process.env["PYTHONPATH"] == "/home/me/.vdisagg/t/p0/switches:/a:/b"


def test_the_places_that_a_node_names_are_used(planned: Planned) -> None:
    plan = planned("""\
        model: /m
        nodes: {here: {device: cpu, python: /opt/py, setup: "module load x", work_dir: /w}}
        prefill: {}
        decode: {}
        """)
    process = plan.instances[0].process
    assert process.argv[:9] == (
        *("bash", "-ec", 'module load x\nexec "$@"', "setup"),
        *("/opt/py", "-m", "vllm.entrypoints.cli.main", "serve", "/m"),
    )
    assert process.directory == "/w/t/p0"


def test_log_dir_is_the_base_of_all_directories(planned: Planned, tmp_path: Path) -> None:
    plan = planned(CPU + "log_dir: logs\n")
    assert {process.directory for process in plan.processes()} == {
        f"{tmp_path}/logs/t/{name}" for name in ("controller", "p0", "d0", "front-end")
    }


def all_ports(plan: Plan) -> list[int]:
    """Every port of a plan, repeated ones repeated."""
    ports = [plan.front_end.http.port, plan.front_end.handshake.port]
    for i in plan.instances:
        ports += [i.handshake.port, i.requests.port, i.outputs.port, *i.connector_ports]
    return ports


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 5), (16, 16)])
@pytest.mark.parametrize("fixed", [8000, 21000, 21005])
@pytest.mark.parametrize("busy", [(), (21001, 21003), tuple(range(21000, 21100, 3))])
def test_d09_ports_are_disjoint_and_not_busy(
    planned: Planned, shape: tuple[int, int], fixed: int, busy: tuple[int, ...]
) -> None:
    text = f"""\
        model: /m
        nodes: {{here: {{device: cpu}}}}
        prefill: {{count: {shape[0]}}}
        decode: {{count: {shape[1]}}}
        front_end: {{port: {fixed}}}
        """
    plan = planned(text, busy=busy)
    ports = all_ports(plan)
    assert len(ports) == len(set(ports)) == 4 * sum(shape) + 2
    assert len(plan.ports()) == len(ports)
    assert not set(ports) - {fixed} & set(busy)
    assert plan.front_end.http.port == fixed
    assert plan == planned(text, busy=busy)


def test_a_port_that_the_user_set_is_never_moved(planned: Planned) -> None:
    assert planned(CPU, busy={8000}).front_end.http.port == 8000


def test_ports_that_run_out_are_the_users_to_mend(planned: Planned) -> None:
    with pytest.raises(UsageError, match=r"lower ports\.first"):
        planned(MANY + "ports: {first: 65000}\n", busy=range(65000, 65530))


def test_engines_are_named_by_role_and_position(planned: Planned) -> None:
    assert [i.name for i in planned(MANY).instances] == ["p0", "p1", "d0", "d1"]


def test_named_gpus_are_kept_and_the_rest_filled_in(planned: Planned) -> None:
    plan = planned("""\
        model: m
        nodes: {box: {gpus: [0, 1, 4, 5, 6]}}
        prefill: {count: 2}
        decode: {instances: [{gpus: [1]}, {args: {tensor_parallel_size: 2}}]}
        """)
    assert [i.gpus for i in plan.instances] == [(0,), (4,), (1,), (5, 6)]


def test_a_sides_gpus_are_shared_out_among_its_engines(planned: Planned) -> None:
    plan = planned("""\
        model: m
        nodes: {box: {gpus: 8}}
        engine: {args: {tensor_parallel_size: 2}}
        prefill: {count: 2, gpus: [4, 5, 6, 7]}
        decode: {count: 2}
        """)
    assert [i.gpus for i in plan.instances] == [(4, 5), (6, 7), (0, 1), (2, 3)]


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2)])
def test_no_gpu_is_given_twice(planned: Planned, tensor: int, shape: tuple[int, int]) -> None:
    plan = planned(f"""\
        model: m
        nodes: {{box: {{gpus: 16}}}}
        engine: {{args: {{tensor_parallel_size: {tensor}}}}}
        prefill: {{count: {shape[0]}}}
        decode: {{count: {shape[1]}}}
        """)
    given = [gpu for instance in plan.instances for gpu in instance.gpus]
    assert len(given) == len(set(given)) == tensor * sum(shape)
    assert all(len(instance.gpus) == tensor for instance in plan.instances)
    for instance in plan.instances:
        visible = ",".join(map(str, instance.gpus))
        assert instance.process.env["CUDA_VISIBLE_DEVICES"] == visible


def test_nodes_reached_by_ssh_are_planned_on_their_addresses(planned: Planned) -> None:
    text = """\
        model: org/m
        nodes:
          here: {device: cpu, data_ip: 10.0.0.1}
          far: {gpus: 1, ssh: me@box, data_ip: 10.0.0.2}
        prefill: {node: here}
        decode: {node: far}
        """
    plan = planned(text)
    p0, d0 = plan.instances
    assert p0.process.env["VLLM_HOST_IP"] == "10.0.0.1"
    assert d0.handshake == Address("10.0.0.1", 21004)
    assert d0.process.env["VLLM_DP_MASTER_IP"] == "10.0.0.1"
    assert d0.process.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.2"
    assert d0.process.argv[0] == "vllm"
    assert d0.process.directory == "~/.vdisagg/t/d0"
    assert [node.name for node in plan.nodes if node.ssh is not None] == ["far"]


def test_the_lease_reaches_both_ends_in_whole_seconds(planned: Planned) -> None:
    plan = planned(CPU + "timeouts: {lease_s: 90.5}\n")
    for instance, role in zip(plan.instances, ("kv_producer", "kv_consumer"), strict=True):
        assert transfer(role, ',"kv_buffer_device":"cpu"', 90) in instance.process.argv


def test_what_loads_nothing_is_started_again_sooner_and_more_often(planned: Planned) -> None:
    plan = planned(CPU)
    for process in plan.processes():
        wanted = Restart()
        if process.kind == "controller":
            wanted = Restart(limit=10, backoff_s=0.1, reset_s=5.0)
        assert plan.restart_of(process) == wanted


def test_a_controller_that_is_never_to_be_started_again_is_not(planned: Planned) -> None:
    plan = planned(f"{CPU}restart: {{policy: never, reset_s: 2}}\n")
    restart = plan.restart_of(plan.controller)
    assert (restart.policy, restart.reset_s) == ("never", 2.0)


def test_restarts_and_failover_are_the_files(planned: Planned) -> None:
    assert planned(CPU).restart == Restart("on-failure", 5, 1.0, 30.0, 600.0)
    said = "restart: {policy: never, limit: 2, backoff_s: 0.5, stopped_s: 9}\n"
    plan = planned(f"{CPU}{said}failover: {{decode_alone: false}}\n")
    assert plan.restart == Restart("never", 2, 0.5, 9.0)
    assert not plan.failover.decode_alone


def test_two_files_that_mean_the_same_have_the_same_digest(planned: Planned) -> None:
    plain = planned(CPU)
    spelt = planned("""\
        # the same in other words
        decode: {count: 1}
        prefill: {node: here, args: {}}
        engine: {args: {max-num-seqs: 32, dtype: "bfloat16", max-model-len: 2048}}
        model: /models/../models/smol
        nodes: {here: {device: cpu}}
        front_end: {port: 8000}
        """)
    assert spelt.digest == plain.digest
    assert planned(CPU.replace("2048", "2049")).digest != plain.digest
    assert planned(CPU, busy={21000}).digest == plain.digest


def test_a_plan_survives_json(planned: Planned) -> None:
    plan = planned(GPU)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


@pytest.mark.parametrize("file", sorted((ROOT / "topologies").glob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_topology_can_be_planned(file: Path) -> None:
    topology = load(file)
    plan = make_plan(topology, HERE, file=file)
    assert plan.topology_file == str(file)
    assert topology.name == file.stem
    assert {instance.role for instance in plan.instances} == {"prefill", "decode"}


def test_demo_and_tiny_can_run_beside_each_other() -> None:
    demo, tiny = (
        set(all_ports(make_plan(load(ROOT / "topologies" / name), HERE)))
        for name in ("demo.yaml", "tiny.yaml")
    )
    assert not demo & tiny


def test_planning_stays_clear_of_heavy_imports() -> None:
    code = (
        "import sys, vdisagg.topology.load, vdisagg.plan.make\n"
        "print([m for m in ('torch', 'vllm', 'zmq', 'rich', 'paramiko', 'aiohttp', 'asyncio')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
