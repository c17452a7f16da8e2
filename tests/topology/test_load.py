"""What a topology file may say, and what each fault in it is told as."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vdisagg.errors import TopologyError, UsageError
from vdisagg.topology.load import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdisagg.topology.model import Topology

BASE = """\
model: org/model
nodes:
  here: {device: cpu}
prefill: {node: here}
decode: {node: here}
"""
GPUS = "model: org/model\nnodes: {n1: {gpus: 4}}\n"


def test_five_lines_are_a_topology(loaded: Callable[[str], Topology], tmp_path: Path) -> None:
    topology = loaded(BASE.replace("org/model", "../models/smol"))
    assert topology.name == "t"
    assert topology.model == os.path.normpath(tmp_path / "../models/smol")
    assert topology.served_model_name == "smol"
    assert (topology.prefill.count, topology.decode.count) == (1, 1)
    assert topology.front_end.node == topology.controller.node == "here"
    assert topology.timeouts.launch_s == 600


def test_the_only_node_need_not_be_named(loaded: Callable[[str], Topology]) -> None:
    topology = loaded("model: m\nnodes: {here: {device: cpu}}\nprefill:\ndecode: {count: 2}\n")
    assert topology.prefill.node == topology.decode.node == "here"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("./m", "{folder}/m"),
        ("/abs/m/", "/abs/m"),
        ("~/m", "{home}/m"),
        ("org/model", "org/model"),
        ("model", "model"),
    ],
)
def test_a_model_is_a_path_only_when_it_starts_like_one(
    loaded: Callable[[str], Topology], tmp_path: Path, said: str, meant: str
) -> None:
    topology = loaded(BASE.replace("org/model", said))
    assert topology.model == meant.format(folder=tmp_path, home=Path.home())


def test_every_key_of_the_full_form_is_taken(loaded: Callable[[str], Topology]) -> None:
    topology = loaded("""\
        name: big-1
        model: org/model
        served_model_name: m
        connector: nixl
        control: direct
        log_dir: logs
        nodes:
          a: {gpus: 2, data_ip: 10.0.0.1, secrets: [HF_TOKEN], env: {A: 1}, vllm: /opt/vllm, work_dir: /w}
          b: {gpus: [0, 3], ssh: "me@host:2222", python: /opt/python, setup: module load cuda}
          c: {gpus: 1, ssh: {host: h, user: u, port: 22, identity_file: ~/.ssh/id}}
        engine: {args: {max-model-len: 2048}, env: {B: x}}
        prefill: {count: 2, node: a, gpus: [0, 1]}
        decode:
          node: b
          args: {max_model_len: 4096}
          instances:
            - {gpus: [3], name: first}
            - {}
            - {node: c, env: {B: null}}
        front_end: {node: a, host: 0.0.0.0, port: 80, api_server_count: 2, api_key: {env: KEY}}
        controller: {node: a}
        heartbeat: {interval_s: 1, misses: 2, canary_tokens: 4}
        timeouts: {launch_s: 1, stop_s: 2, request_s: 3.5}
        ports: {first: 30000}
        """)
    ssh = topology.nodes["b"].ssh
    assert ssh is not None
    assert (ssh.user, ssh.host, ssh.port) == ("me", "host", 2222)
    assert topology.nodes["a"].gpus == (0, 1)
    assert topology.nodes["a"].env == {"A": "1"}
    assert topology.engine.args == {"max_model_len": 2048}
    assert topology.decode.instances is not None
    assert [i.name for i in topology.decode.instances] == ["first", None, None]


def test_a_node_for_the_controller_is_made_where_the_file_has_only_others(
    loaded: Callable[[str], Topology],
) -> None:
    text = "model: m\nnodes: {%s: {device: %s, ssh: h, gpus: 2}}\nprefill: {}\ndecode: {}\n"
    topology = loaded(text % ("n1", "cuda"))
    assert topology.controller.node == topology.front_end.node == "here"
    assert topology.nodes["here"].local
    assert topology.prefill.node == "n1"
    taken = loaded((text % ("here", "cpu")).replace(", gpus: 2", ""))
    assert taken.controller.node == "this-machine"
    assert taken.nodes["this-machine"].device == "cpu"


def test_plain_aliases_are_values_like_any_other(loaded: Callable[[str], Topology]) -> None:
    text = "prefill: {args: &shared {dtype: float32}}\ndecode: {args: *shared}\n"
    topology = loaded("model: m\nnodes: {here: {device: cpu}}\n" + text)
    assert topology.decode.args == topology.prefill.args == {"dtype": "float32"}


def test_a_topology_cannot_be_changed(loaded: Callable[[str], Topology]) -> None:
    with pytest.raises(ValueError, match="frozen"):
        loaded(BASE).name = "other"


# One fault each: the text, and the whole message.
GOLDEN: dict[str, tuple[str, list[str]]] = {
    "d16_two_prefill_blocks": (
        BASE + "prefill: {count: 2}\n",
        ["t.yaml:6:1 prefill: the key stands twice; first at line 4; keep one"],
    ),
    "d16_the_same_node_name_twice": (
        BASE.replace("  here: {device: cpu}\n", "  here: {device: cpu}\n  here: {gpus: 8}\n"),
        ["t.yaml:4:3 nodes.here: the key stands twice; first at line 3; keep one"],
    ),
    "d16_a_misspelt_flag": (
        BASE + "engine: {args: {gpu_memory_utilisation: 0.9}}\n",
        [
            "t.yaml:6:17 engine.args.gpu_memory_utilisation: vLLM 0.32 has no such flag; did you mean "
            "`gpu_memory_utilization`? (`--gpu-memory-utilisation` is passed on untouched when written "
            "with its dashes)"
        ],
    ),
    "d16_a_flag_outside_args": (
        BASE.replace("decode: {node: here}", "decode: {node: here, gpu_memory_utilisation: 0.9}"),
        [
            "t.yaml:5:22 decode.gpu_memory_utilisation: there is no such key here; "
            "`gpu_memory_utilization` is a flag of vLLM: put it under `decode.args`"
        ],
    ),
    "d16_a_misspelt_key": (
        BASE + "front_end: {prot: 8001}\n",
        ["t.yaml:6:13 front_end.prot: there is no such key here; did you mean `port`?"],
    ),
    "d16_a_key_one_level_too_deep": (
        BASE + "front_end: {heartbeat: {misses: 2}}\n",
        [
            "t.yaml:6:13 front_end.heartbeat: there is no such key here; "
            "`heartbeat` stands under the top of the file"
        ],
    ),
    "d16_a_key_one_level_too_high": (
        BASE + "interval_s: 3\n",
        ["t.yaml:6:1 interval_s: there is no such key here; `interval_s` stands under `heartbeat`"],
    ),
    "d16_an_empty_file": (
        "",
        [
            "t.yaml:1:1 the file is empty; a topology needs at least model, nodes, prefill and decode"
        ],
    ),
    "d16_a_list_where_a_map_is_due": (
        BASE.replace("decode: {node: here}", "decode:\n  - node: here"),
        ["t.yaml:6:3 decode: should be a map; got a list"],
    ),
    "a_list_as_the_whole_file": (
        "- a\n",
        [
            "t.yaml:1:1 should be a map; got a list; "
            "a topology is a map with model, nodes, prefill and decode"
        ],
    ),
    "a_misspelt_required_key_is_told_once": (
        BASE.replace("model:", "modle:"),
        ["t.yaml:1:1 modle: there is no such key here; did you mean `model`?"],
    ),
    "a_missing_key": (
        "model: m\nnodes: {here: {device: cpu}}\nprefill: {}\n",
        ["t.yaml:1:1 decode: is missing; say `decode: {node: NAME}`"],
    ),
    "text_for_a_whole_number": (
        BASE + "front_end: {port: two}\n",
        ["t.yaml:6:19 front_end.port: should be a whole number; got 'two'"],
    ),
    "a_quoted_number_is_text": (
        BASE + 'front_end: {port: "8000"}\n',
        ["t.yaml:6:19 front_end.port: should be a whole number; got '8000'"],
    ),
    "a_number_for_text": (
        BASE + "name: 7\n",
        ["t.yaml:6:7 name: should be text; got 7; put it in quotes"],
    ),
    "a_fraction_for_a_whole_number": (
        BASE.replace("decode: {node: here}", "decode: {node: here, count: 1.5}"),
        ["t.yaml:5:29 decode.count: should be a whole number; got 1.5"],
    ),
    "true_for_a_whole_number": (
        BASE.replace("decode: {node: here}", "decode: {node: here, count: true}"),
        ["t.yaml:5:29 decode.count: should be a whole number; got true"],
    ),
    "a_word_that_is_not_offered": (
        BASE + "control: indirect\n",
        ["t.yaml:6:10 control: should be direct or tunnel; got 'indirect'"],
    ),
    "zero_engines": (
        BASE.replace("decode: {node: here}", "decode: {node: here, count: 0}"),
        ["t.yaml:5:29 decode.count: should be at least 1; got 0"],
    ),
    "count_and_instances": (
        BASE.replace("decode: {node: here}", "decode: {node: here, count: 1, instances: [{}]}"),
        [
            "t.yaml:5:9 decode: has both `count` and `instances`; "
            "say one: the list's length is the count"
        ],
    ),
    "python_and_vllm": (
        BASE.replace("{device: cpu}", "{device: cpu, python: /p, vllm: /v}"),
        ["t.yaml:3:9 nodes.here: has both `python` and `vllm`; say one: both tell where vLLM is"],
    ),
    "a_connector_of_a_later_version": (
        BASE + "connector: mooncake\n",
        ["t.yaml:6:12 connector: mooncake is not offered yet; say nixl"],
    ),
    "a_connector_that_nobody_knows": (
        BASE + "connector: pigeon\n",
        ["t.yaml:6:12 connector: there is no connector 'pigeon'; say nixl"],
    ),
    "a_node_that_does_not_exist": (
        BASE.replace("decode: {node: here}", "decode: {node: her}"),
        ["t.yaml:5:16 decode.node: there is no node 'her'; did you mean here?"],
    ),
    "no_node_named_where_there_are_two": (
        "model: m\nnodes: {a: {device: cpu}, b: {device: cpu}}\nprefill: {node: a}\ndecode: {}\n",
        ["t.yaml:4:9 decode.node: is missing; say which node: a, b"],
    ),
    "d09_data_parallel_size": (
        BASE + "engine: {args: {data-parallel-size: 2}}\n",
        [
            "t.yaml:6:17 engine.args.data_parallel_size: the plan owns the data-parallel flags; "
            "an instance is one engine core: say `count: N` for N of them"
        ],
    ),
    "a_flag_that_the_plan_owns": (
        BASE + "front_end: {args: {api_key: abc}}\n",
        [
            "t.yaml:6:20 front_end.args.api_key: the plan owns this flag; say "
            "`front_end.api_key: {env: NAME}` or `{file: PATH}`: argv is public"
        ],
    ),
    "an_abbreviation_of_a_flag_that_the_plan_owns": (
        BASE + "engine: {args: {--kv-transfer: {}}}\n",
        [
            "t.yaml:6:17 engine.args.--kv-transfer: the plan owns this flag; "
            "say `connector:` at the top of the file"
        ],
    ),
    "a_short_name_of_a_flag": (
        BASE + "engine: {args: {tp: 2}}\n",
        ["t.yaml:6:17 engine.args.tp: tp is vLLM's short name; write `tensor_parallel_size`"],
    ),
    "a_variable_that_the_plan_owns": (
        BASE + "engine: {env: {CUDA_VISIBLE_DEVICES: 1}}\n",
        [
            "t.yaml:6:16 engine.env.CUDA_VISIBLE_DEVICES: the plan sets this variable; "
            "say `gpus:` on the instance"
        ],
    ),
    "d09_a_gpu_that_does_not_exist": (
        GPUS + "prefill: {gpus: [7]}\ndecode: {}\n",
        ["t.yaml:3:17 prefill.gpus: GPU 7 of p0 is not on node n1; it has GPUs 0-3"],
    ),
    "d09_two_roles_naming_gpu_0": (
        GPUS + "prefill: {gpus: [0]}\ndecode: {gpus: [0]}\n",
        [
            "t.yaml:4:16 decode.gpus: GPU 0 of node n1 is given to p0 and to d0; "
            "give each engine its own; it has GPUs 0-3"
        ],
    ),
    "d09_gpus_that_overlap": (
        GPUS
        + "engine: {args: {tensor_parallel_size: 2}}\nprefill: {gpus: [0, 1]}\n"
        + "decode: {instances: [{gpus: [1, 2]}]}\n",
        [
            "t.yaml:5:29 decode.instances[0].gpus: GPU 1 of node n1 is given to p0 and to d0; "
            "give each engine its own; it has GPUs 0-3"
        ],
    ),
    "d09_too_few_gpus": (
        GPUS + "prefill: {args: {tensor-parallel-size: 4}}\ndecode: {}\n",
        ["t.yaml:4:9 decode: d0 needs 1 GPU on node n1, where 0 are left; it has GPUs 0-3"],
    ),
    "d09_more_gpus_than_the_engine_takes": (
        GPUS + "prefill: {gpus: [0, 1]}\ndecode: {}\n",
        [
            "t.yaml:3:17 prefill.gpus: p0 takes 1 GPU on node n1; got 2 (GPUs 0, 1); "
            "name as many as tensor_parallel_size × pipeline_parallel_size says"
        ],
    ),
    "a_node_without_gpus": (
        "model: m\nnodes: {n1: {}}\nprefill: {}\ndecode: {}\n",
        [
            "t.yaml:2:13 nodes.n1: has no `gpus`, and p0 and d0 should run there; "
            "say `gpus: N`, or `device: cpu`"
        ],
    ),
    "gpus_on_a_cpu_node": (
        BASE.replace("decode: {node: here}", "decode: {node: here, gpus: [0]}"),
        ["t.yaml:5:28 decode.gpus: node here has `device: cpu` and no GPUs; leave `gpus` out"],
    ),
    "two_nodes_that_are_the_same_machine": (
        "model: m\nnodes: {a: {gpus: 1}, b: {gpus: 1}}\nprefill: {node: a}\ndecode: {node: b}\n",
        [
            "t.yaml:2:26 nodes.b: is this machine, and so is a: their GPUs are the same; "
            "keep one, or say `ssh:`"
        ],
    ),
    "an_address_said_twice": (
        BASE.replace("{device: cpu}", "{device: cpu, data_ip: 192.0.2.1, interface: eth0}"),
        [
            "t.yaml:3:9 nodes.here: has both `data_ip` and `interface`; say one: both tell its address"
        ],
    ),
    "an_address_of_everybody": (
        BASE.replace("{device: cpu}", "{device: cpu, data_ip: 0.0.0.0}"),
        [
            "t.yaml:3:32 nodes.here.data_ip: 0.0.0.0 is no machine's address; "
            "say the one that other nodes dial"
        ],
    ),
    "an_address_without_its_link": (
        BASE.replace("{device: cpu}", '{device: cpu, data_ip: "fe80::1"}'),
        ["t.yaml:3:32 nodes.here.data_ip: fe80::1 is a link-local address; say one that is routed"],
    ),
    "an_interface_with_a_space": (
        BASE.replace("{device: cpu}", '{device: cpu, interface: "eth 0"}'),
        [
            "t.yaml:3:34 nodes.here.interface: 'eth 0' is no name for an interface; "
            "for example eth1 or ib0"
        ],
    ),
    "a_tunnels_name": (
        BASE.replace("decode: {node: here}", "decode: {instances: [{name: tunnel-n1}]}"),
        [
            "t.yaml:5:29 decode.instances[0].name: 'tunnel-n1' is the name of another process; "
            "choose another"
        ],
    ),
    "a_launch_that_there_is_not": (
        BASE.replace("decode: {node: here}", "decode: {launch: slurm}"),
        ["t.yaml:5:18 decode.launch: should be auto or manual; got 'slurm'"],
    ),
    "a_tab": (
        "model: m\nnodes:\n\there: {}\n",
        ["t.yaml:3:1 a tab is used for indentation; indent with spaces"],
    ),
    "a_tab_after_spaces": (
        "model: m\nnodes:\n  \there: {}\n",
        ["t.yaml:3:3 a tab is used for indentation; indent with spaces"],
    ),
    "two_documents": (
        BASE + "---\nmodel: b\n",
        ["t.yaml:6:1 a second document begins; one file describes one cluster"],
    ),
    "a_merge_key": (
        BASE.replace("{node: here}", "&side {node: here}", 1).replace(
            "decode: {node: here}", "decode: {<<: *side}"
        ),
        [
            "t.yaml:5:10 decode.<<: merge keys are not offered; say what all engines share under "
            "`engine:` and what one side shares under `prefill:` or `decode:`; "
            "plain aliases (`*name`) work"
        ],
    ),
    "a_key_that_is_no_text": (
        BASE.replace("here", "1").replace("{node: 1}", "{node: '1'}"),
        ["t.yaml:3:3 nodes.1: the key is not text; put it in quotes"],
    ),
    "a_node_that_is_called_no": (
        BASE.replace("here", "no").replace("{node: no}", "{node: 'no'}"),
        [
            "t.yaml:3:3 nodes.no: the key `no` means true or false to some YAML readers; "
            "write true or false, or put it in quotes if it is text"
        ],
    ),
    "no_nodes": (
        BASE.replace("\n  here: {device: cpu}", " {}"),
        [
            "t.yaml:2:8 nodes: should not be empty; say `nodes: {here: {device: cpu}}` for this machine"
        ],
    ),
    "an_empty_model_is_told_once": (
        BASE.replace("model: org/model", 'model: ""'),
        ["t.yaml:1:8 model: should be a line of text"],
    ),
    "an_empty_log_dir_is_not_the_topologys_folder": (
        BASE + 'log_dir: ""\n',
        ["t.yaml:6:10 log_dir: should be a line of text"],
    ),
    "an_empty_key_file": (
        BASE + 'front_end: {api_key: {file: ""}}\n',
        ["t.yaml:6:29 front_end.api_key.file: should be a line of text"],
    ),
    "an_alias_that_contains_itself": (
        BASE + "engine: {args: &a {hf_overrides: {x: *a}}}\n",
        ["t.yaml:6:16 engine.args.hf_overrides.x: an alias contains itself; write the values out"],
    ),
    "a_tag": (
        BASE + "name: !!python/name:os.system x\n",
        ["t.yaml:6:7 name: the tag !!python/name:os.system is not offered; write plain values"],
    ),
    "a_colon_where_no_key_can_stand": (
        "model: a: b\n",
        [
            "t.yaml:1:9 a `:` where no key can stand; "
            "check the indentation, or quote text with `: ` in it"
        ],
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_a_fault_is_told_with_place_what_and_what_next(
    complaints: Callable[[str], list[str]], case: str
) -> None:
    text, expected = GOLDEN[case]
    assert complaints(text) == expected


@pytest.mark.parametrize(
    "scalar",
    [
        "yes",
        "no",
        "on",
        "off",
        "Yes",
        "NO",
        "y",
        "N",
        "0755",
        "010",
        "0o17",
        "0x1F",
        "0b11",
        "1:30",
        "22:22",
        "1:30.5",
        "1_000",
        "1_0.5",
        "2024-01-02",
        "2024-01-02T10:00:00Z",
        "=",
        "1e5",
        ".inf",
        ".nan",
    ],
)
def test_a_yaml_1_1_surprise_is_refused_unless_quoted(
    complaints: Callable[[str], list[str]], loaded: Callable[[str], Topology], scalar: str
) -> None:
    (line,) = complaints(BASE + f"engine: {{args: {{revision: {scalar}}}}}\n")
    assert line.startswith(f"t.yaml:6:27 engine.args.revision: `{scalar}` ")
    assert "quotes" in line
    quoted = loaded(BASE + f"engine: {{args: {{revision: '{scalar}'}}}}\n")
    assert quoted.engine.args == {"revision": scalar}


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("true", True),
        ("False", False),
        ("7", 7),
        ("-1", -1),
        ("0", 0),
        ("0.90", 0.9),
        ("1.0e-5", 1e-5),
        ("auto", "auto"),
        ("1.2.3", "1.2.3"),
        ("::1", "::1"),
        ("2k", "2k"),
        ("'7'", "7"),
        ("[1, a]", [1, "a"]),
        ("{a: [1]}", {"a": [1]}),
    ],
)
def test_plain_values_mean_what_they_look_like(
    loaded: Callable[[str], Topology], scalar: str, value: object
) -> None:
    args = loaded(BASE + f"engine:\n  args:\n    x_y_z: {scalar}\n").engine.args
    assert args == {"x_y_z": value}
    assert type(args["x_y_z"]) is type(value)


def test_all_faults_are_told_at_once_in_the_order_of_the_file(
    complaints: Callable[[str], list[str]],
) -> None:
    lines = complaints("""\
        modle: m
        nodes:
          a: {gpus: two, device: cpu}
          a: {}
        engine: {args: {tensor_paralel_size: 2, enable_x: no}}
        prefill: {node: b, count: "2"}
        decode: [a]
        heartbeat: {misses: 0}
        connector: multi
        """)
    assert [line.split(" ")[0:2] for line in lines] == [
        ["t.yaml:1:1", "modle:"],
        ["t.yaml:3:13", "nodes.a.gpus:"],
        ["t.yaml:4:3", "nodes.a:"],
        ["t.yaml:5:17", "engine.args.tensor_paralel_size:"],
        ["t.yaml:5:51", "engine.args.enable_x:"],
        ["t.yaml:6:17", "prefill.node:"],
        ["t.yaml:6:27", "prefill.count:"],
        ["t.yaml:7:9", "decode:"],
        ["t.yaml:8:21", "heartbeat.misses:"],
        ["t.yaml:9:12", "connector:"],
    ]


def test_a_later_level_overrides_whatever_the_spelling(
    loaded: Callable[[str], Topology],
) -> None:
    from vdisagg.topology.engines import engines

    topology = loaded("""\
        model: m
        nodes: {here: {device: cpu, env: {A: node, B: node}}}
        engine: {args: {max-model-len: 1, dtype: a, seed: 1}, env: {A: engine, C: engine}}
        prefill: {args: {max_model_len: 2, no_enable_prefix_caching: true}, env: {C: null}}
        decode: {instances: [{args: {seed: null, dtype: b}}]}
        """)
    p0, d0 = engines(topology)
    assert p0.args == {
        "max-model-len": 2,
        "dtype": "a",
        "seed": 1,
        "enable-prefix-caching": False,
    }
    assert d0.args == {"max-model-len": 1, "dtype": "b"}
    assert p0.env == {"A": "engine", "B": "node"}
    assert d0.env == {"A": "engine", "B": "node", "C": "engine"}


def test_an_alias_bomb_is_refused_quickly(complaints: Callable[[str], list[str]]) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert complaints("\n".join(lines)) == [
        "t.yaml:1:1 aliases expand to more than 100000 values; write less"
    ]


def test_a_file_that_cannot_be_read_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="this is a folder"):
        load(tmp_path)


def test_a_file_that_is_not_utf_8_is_told_with_the_byte(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_bytes(b"model: m\nname: \xff\n")
    with pytest.raises(
        TopologyError, match=r"t\.yaml:2:7 byte 0xFF is not UTF-8; save the file as UTF-8"
    ):
        load(file)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert load(file).model == "org/model"
