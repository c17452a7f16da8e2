"""The command line: exit codes, streams, and no traceback; nothing here starts a process of a cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import vdisagg
from hosts.sshd import free_port

Run = Callable[..., subprocess.CompletedProcess[str]]
COMMANDS = ("up", "down", "status", "check", "connect", "logs", "events", "bench")
TOPOLOGY = """\
model: some/model
nodes:
  here: {device: cpu}
prefill: {node: here}
decode: {node: here}
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `vdisagg` with a state directory of its own."""

    def run_it(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), **variables}
        command = [sys.executable, "-m", "vdisagg", *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
        assert "Traceback" not in done.stderr
        return done

    return run_it


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(TOPOLOGY)
    return path


def test_the_version_is_printed(run: Run) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"vdisagg {vdisagg.__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"Example: vdisagg {command}" in done.stdout


def test_the_help_lists_every_command_that_a_module_has(run: Run) -> None:
    from vdisagg.cli.late import MODULES

    for module in set(MODULES.values()):
        commands = import_module(f"vdisagg.cli.{module}").commands
        names = {command.callback.__name__ for command in commands.registered_commands}
        names |= {group.name for group in commands.registered_groups}
        assert names == {name for name, home in MODULES.items() if home == module}
    listed = re.findall(r"^│ (\w+) +\w", run("--help").stdout, re.MULTILINE)
    assert listed == list(COMMANDS) == list(MODULES)


def test_a_misspelt_command_is_told_what_it_may_have_meant(run: Run) -> None:
    done = run("chekc")
    assert done.returncode == 2
    assert "No such command 'chekc'. Did you mean 'check'?" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("frobnicate",), ("up",), ("up", "nowhere.yaml"), ("check", "nowhere.yaml"), ("logs",)],
)
def test_wrong_usage_exits_2_and_says_why_on_stderr(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_d16_a_faulty_topology_exits_2_with_its_place(run: Run, topology: Path) -> None:
    topology.write_text(TOPOLOGY + "decode: {node: here}\n")
    done = run("up", "demo.yaml")
    assert done.returncode == 2
    assert "demo.yaml:6:1" in done.stderr


def test_check_prints_the_plan_and_touches_nothing(
    run: Run, topology: Path, tmp_path: Path
) -> None:
    done = run("check", "demo.yaml")
    assert done.returncode == 0, done.stderr
    assert "p0" in done.stdout
    assert "\x1b" not in done.stdout
    commands = run("check", "demo.yaml", "--commands").stdout
    assert "serve some/model" in commands
    assert run("check", "demo.yaml", "--json").stdout.startswith("{")
    assert [path.name for path in tmp_path.iterdir()] == ["demo.yaml"]


@pytest.mark.parametrize("other", ["--nodes", "--json"])
def test_check_prints_one_thing_and_drops_no_option(run: Run, topology: Path, other: str) -> None:
    done = run("check", "demo.yaml", "--commands", other)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: say --commands or {other}, not both")


def test_connect_prints_the_command_of_an_instance_that_is_started_by_hand(
    run: Run, topology: Path
) -> None:
    topology.write_text(
        TOPOLOGY.replace("decode: {node: here}", "decode: {node: here, launch: manual}")
    )
    done = run("connect", str(topology), "d0")
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("VLLM_TARGET_DEVICE=cpu ")
    assert " serve some/model --served-model-name model --headless " in line
    assert "cluster demo does not run yet" in done.stderr
    others = run("connect", str(topology), "p0"), run("connect", str(topology), "d1")
    assert [other.returncode for other in others] == [2, 2]
    assert "p0 is started by `vdisagg up`" in others[0].stderr
    assert "no instance is named 'd1'; there are: p0, d0" in others[1].stderr


def test_up_without_vllm_says_how_to_get_it(run: Run, topology: Path, tmp_path: Path) -> None:
    if Path(sys.executable).with_name("vllm").exists():
        pytest.skip("vLLM is installed beside this interpreter")
    done = run("up", "demo.yaml", PATH=str(tmp_path))
    assert done.returncode == 2
    assert "nodes.here: no `vllm` beside" in done.stderr
    assert "next: pip install" in done.stderr


def test_up_names_every_node_that_cannot_be_reached_and_starts_nothing(
    run: Run, topology: Path, tmp_path: Path
) -> None:
    port = free_port()
    node = f"{{device: cpu, ssh: {{host: 127.0.0.1, port: {port}}}, data_ip: 127.0.0.1}}"
    more = f"  a: {node}\n  b: {node}\nfront_end: {{node: here}}\ncontroller: {{node: here}}\n"
    text = TOPOLOGY.replace("prefill: {node: here}\ndecode: {node: here}\n", more)
    topology.write_text(text + "prefill: {node: a}\ndecode: {node: b}\n")
    done = run("up", "demo.yaml")
    assert done.returncode == 1, done.stderr
    assert [name for name in ("a", "b") if f"{name}: " in done.stderr] == ["a", "b"]
    assert not (tmp_path / "state" / "vdisagg" / "demo" / "cluster.json").exists()


def test_with_nothing_recorded_status_exits_1_and_down_exits_0(run: Run) -> None:
    status, down = run("status"), run("down")
    assert (status.returncode, status.stdout) == (1, "no cluster is recorded, so nothing runs\n")
    assert (down.returncode, down.stdout) == (0, "no cluster is recorded, so nothing runs\n")


def test_down_of_a_cluster_that_never_ran_says_so_and_makes_nothing(
    run: Run, topology: Path, tmp_path: Path
) -> None:
    for words in (("--name", "other"), ("demo.yaml",)):
        done = run("down", *words)
        assert done.returncode == 0
        assert done.stdout.endswith(": nothing runs\n")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", ["../other", "a/b", ".."])
def test_a_name_is_never_a_path(run: Run, name: str) -> None:
    done = run("down", "--name", name)
    assert done.returncode == 2
    assert "is no cluster's name" in done.stderr


def test_logs_and_events_of_what_does_not_run_say_so(run: Run) -> None:
    logs = run("logs", "p0", "--cluster", "demo")
    assert logs.returncode == 2
    assert "cluster demo is not recorded" in logs.stderr
    events = run("events", "--name", "demo")
    assert events.returncode == 1
    assert "cluster demo is not up" in events.stderr


def test_an_unreadable_record_is_an_error_and_no_traceback(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "state" / "vdisagg" / "demo"
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_text("{")
    for command in ("status", "down"):
        done = run(command)
        assert done.returncode == 1
        assert "not a cluster record" in done.stderr
        assert "next: `vdisagg down FILE --find`" in done.stderr


def test_down_find_goes_on_without_a_record_that_is_unreadable_and_forgets_it(
    run: Run, topology: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "state" / "vdisagg" / "demo"
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_text("{")
    (directory / "admin.sock").touch()
    done = run("down", str(topology), "--find", HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "cluster demo: nothing runs\n")
    assert "cluster.json: not a cluster record" in done.stderr
    assert "only the nodes of" in done.stderr
    assert [path.name for path in directory.iterdir()] == ["lock"]


def test_a_record_of_a_newer_version_is_left_alone_by_down_find(
    run: Run, topology: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "state" / "vdisagg" / "demo"
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_text('{"format": 1000}')
    done = run("down", str(topology), "--find", HOME=str(tmp_path))
    assert done.returncode == 1
    assert "next: use the vdisagg that started the cluster" in done.stderr
    assert (directory / "cluster.json").exists()


@pytest.mark.parametrize("command", ["down", "status", "events"])
def test_a_file_that_no_longer_says_which_cluster_is_meant_is_told_with_the_way_round_it(
    run: Run, topology: Path, tmp_path: Path, command: str
) -> None:
    directory = tmp_path / "state" / "vdisagg" / "demo"
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_text("{")
    hint = "next: `--name NAME` needs no file; recorded are: demo"
    topology.write_text(TOPOLOGY + "decode: {node: here}\n")
    broken = run(command, str(topology))
    assert broken.returncode == 2
    assert "demo.yaml:6:1" in broken.stderr
    assert broken.stderr.endswith(hint + "\n")
    topology.unlink()
    missing = run(command, str(topology))
    assert missing.returncode == 2
    assert "demo.yaml: there is no such file" in missing.stderr
    assert "to start from" not in missing.stderr
    assert missing.stderr.endswith(hint + "\n")


HEAVY = ("pydantic", "yaml", "paramiko", "aiohttp", "zmq", "rich", "ssl", "http.client")


def test_what_status_needs_is_light() -> None:
    """It has 0.3 s in all: what only other commands need stays out."""
    script = (
        "import sys, typer; before = set(sys.modules); from vdisagg import cli; "
        "import vdisagg.launch.status, vdisagg.view.status, vdisagg.launch.local; "
        f"print([name for name in {HEAVY} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(
    tuple(map(int, version("typer").split(".")[:2])) >= (0, 29),
    reason="this typer is not the one that pyproject.toml asks for",
)
def test_status_as_a_whole_is_light(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['vdisagg', 'status', '--name', 'demo']\n"
        "from vdisagg import cli\n"
        "try: cli.main()\n"
        f"except SystemExit: print([name for name in {HEAVY} if name in sys.modules])"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr


def test_d09_ports_of_another_recorded_cluster_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller may be dead, but its engines go on dialling those ports."""
    from vdisagg.cluster import record
    from vdisagg.launch.here import here_for, taken_ports
    from vdisagg.plan.make import make_plan
    from vdisagg.topology.load import load

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    text = "model: /m\nnodes: {here: {device: cpu}}\nprefill: {}\ndecode: {}\n"
    plans = []
    for name in ("one", "two"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        topology = load(file)
        plan = make_plan(topology, here_for(topology), busy=taken_ports(name))
        directory = record.state_directory(name)
        record.write(directory, record.Record(plan, 0.0, 1, "up", {}))
        plans.append(plan)
    one, two = ({a.port for a in p.ports()} - {p.front_end.http.port} for p in plans)
    assert not one & two
    again = make_plan(load(file), here_for(topology), busy=taken_ports("two"))
    assert again.ports() == plans[1].ports(), "its own recorded ports are its own"
