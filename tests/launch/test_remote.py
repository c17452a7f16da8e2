"""The runner for other machines does there what the local one does here, through a connection."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from fakes import living
from fakes.node import FakeConnection
from vdisagg.errors import Failure, LaunchFailed, Unreachable
from vdisagg.launch import pythons
from vdisagg.launch.dialogue import Dialogue
from vdisagg.launch.remote import RemoteRunner
from vdisagg.launch.runner import Mark
from vdisagg.plan.model import Address, Node, Process, Restart, Ssh

NODE = Node("n1", "cpu", "127.0.0.1", ssh=Ssh("n1.example"))
MARK = Mark("demo", "launcher.example", "/home/me/.local/state/vdisagg/demo")


@pytest.fixture
def connection(tmp_path: Path) -> FakeConnection:
    return FakeConnection(tmp_path / "home")


@contextlib.contextmanager
def runner_over(connection: FakeConnection, node: Node = NODE) -> Iterator[RemoteRunner]:
    dialogue = Dialogue(connection, node.name, pythons.candidates(node.python))
    with contextlib.closing(dialogue):
        yield RemoteRunner(dialogue, node, MARK)


@pytest.fixture
def runner(connection: FakeConnection) -> Iterator[RemoteRunner]:
    with runner_over(connection) as made:
        yield made


@pytest.fixture
def make_process(runner: RemoteRunner) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(script: str, name: str = "p0", **fields: object) -> Process:
        process = Process(
            name, "prefill", "n1", ("sh", "-c", script), {}, f"~/.vdisagg/demo/{name}"
        )
        made.append(msgspec.structs.replace(process, **fields))
        return made[-1]

    yield make
    for process in made:
        runner.stop(process, 0.1)


def test_a_process_runs_in_its_directory_under_the_nodes_home_with_its_secrets(
    runner: RemoteRunner,
    connection: FakeConnection,
    make_process: Callable[..., Process],
    wait_until: Callable[..., None],
) -> None:
    process = make_process('echo "$PWD $WORD $KEY"; exit 7', env={"WORD": "hello"})
    started = runner.start(process, {"KEY": "k3y"}, 1.0)
    wait_until(lambda: runner.observe(process).state == "exited")
    seen = runner.observe(process)
    assert (seen.code, seen.pid, started.directory) == (7, started.pid, process.directory)
    assert runner.tail(process, 5) == [f"{connection.home}/.vdisagg/demo/p0 hello k3y"]


def test_secrets_stand_in_no_word_and_no_file(
    runner: RemoteRunner,
    connection: FakeConnection,
    make_process: Callable[..., Process],
    wait_until: Callable[..., None],
) -> None:
    process = make_process('[ "$KEY" ] && echo got it')
    runner.start(process, {"KEY": "s3cret"}, 1.0)
    wait_until(lambda: runner.tail(process, 1) == ["got it"])
    assert not [words for words in connection.ran if any("s3cret" in word for word in words)]
    lines = [line for data in connection.sent for line in data.splitlines()]
    asked = [json.loads(line) for line in lines if line.startswith(b"{")]
    assert not [one for one in asked if any("s3cret" in word for word in one.get("words", ()))]
    files = living.texts(connection.home)
    assert files
    assert not [path for path, text in files.items() if "s3cret" in text]


def test_words_and_python_paths_may_begin_with_the_nodes_home(
    runner: RemoteRunner,
    connection: FakeConnection,
    make_process: Callable[..., Process],
    wait_until: Callable[..., None],
) -> None:
    script = connection.home / "say"
    script.write_text('#!/bin/sh\necho "$PYTHONPATH $1"\n')
    script.chmod(0o755)
    process = make_process("", argv=("~/say", "~/model"), env={"PYTHONPATH": "~/a:/b"})
    runner.start(process, {}, 1.0)
    wait_until(lambda: runner.observe(process).state == "exited")
    home = connection.home
    assert runner.tail(process, 1) == [f"{home}/a:/b {home}/model"]


def test_one_command_serves_for_all_that_is_asked_and_nothing_is_put_there_for_it(
    runner: RemoteRunner, connection: FakeConnection, make_process: Callable[..., Process]
) -> None:
    process = make_process("true")
    runner.observe(process)
    runner.busy_ports([])
    runner.tail(process, 1)
    assert len(connection.ran) == 1
    assert list(connection.home.iterdir()) == []


def test_a_module_travels_once(
    runner: RemoteRunner, connection: FakeConnection, make_process: Callable[..., Process]
) -> None:
    runner.observe(make_process("true"))
    assert sum(len(data) for data in connection.sent) > 20_000
    before = len(connection.sent)
    runner.observe(make_process("true"))
    assert sum(len(data) for data in connection.sent[before:]) < 500


def test_nothing_that_is_put_there_is_for_others_to_read(
    runner: RemoteRunner, connection: FakeConnection, make_process: Callable[..., Process]
) -> None:
    runner.start(make_process("true", switches=True), {}, 1.0, {"folder/file": "text"})
    modes = living.modes(connection.home / ".vdisagg")
    assert {"file", "sitecustomize.py", "process.json"} <= set(modes)
    assert not {name: mode for name, mode in modes.items() if mode & 0o077}


def test_a_folder_that_cannot_be_made_is_named_with_its_key(
    connection: FakeConnection, make_process: Callable[..., Process]
) -> None:
    (connection.home / "file").touch()
    node = msgspec.structs.replace(NODE, work_directory="~/file")
    process = make_process("true", directory="~/file/demo/p0")
    with (
        runner_over(connection, node) as runner,
        pytest.raises(LaunchFailed, match=r"n1: ~/file/demo cannot be .*file.*work_dir.*nodes\.n1"),
    ):
        runner.start(process, {}, 1.0)


def test_switches_are_put_in_place_where_they_are_asked_for(
    runner: RemoteRunner, connection: FakeConnection, make_process: Callable[..., Process]
) -> None:
    switches = connection.home / ".vdisagg/demo/p0/switches"
    runner.start(make_process("true"), {}, 1.0)
    assert not switches.exists()
    runner.stop(make_process("true"), 0.1)
    runner.start(make_process("true", switches=True), {}, 1.0)
    assert (switches / "sitecustomize.py").is_file()


def test_many_processes_are_observed_and_ended_in_one_go_each(
    runner: RemoteRunner, connection: FakeConnection, make_process: Callable[..., Process]
) -> None:
    processes = [make_process("sleep 1000", f"p{i}") for i in range(4)]
    pids = [runner.start(process, {}, 1.0).pid for process in processes]
    before = len(connection.sent)
    assert [seen.pid for seen in runner.observe_all(processes)] == pids
    assert [done.ended[0] for done in runner.stop_all(processes, 1.0)] == pids
    assert len(connection.sent) == before + 2
    assert {seen.state for seen in runner.observe_all(processes)} == {"exited"}


def test_d08_a_second_start_in_the_same_directory_is_refused_with_its_pid(
    runner: RemoteRunner, make_process: Callable[..., Process]
) -> None:
    process = make_process("sleep 1000")
    runner.start(process, {}, 1.0)
    with pytest.raises(LaunchFailed, match=r"n1: p0: already runs in .*/demo/p0 as pid"):
        runner.start(process, {}, 1.0)


def test_a_missing_executable_is_named_with_its_node(
    runner: RemoteRunner, make_process: Callable[..., Process]
) -> None:
    with pytest.raises(LaunchFailed, match=r"n1: p0: /nowhere/vllm: no such file.*next: "):
        runner.start(make_process("", argv=("/nowhere/vllm",)), {}, 1.0)


def test_the_guard_holds_nothing_of_the_channel_that_started_it(
    runner: RemoteRunner, make_process: Callable[..., Process], wait_until: Callable[..., None]
) -> None:
    """Otherwise the channel would stay open, and the guard would get SIGPIPE or SIGHUP with its end."""
    process = make_process("sleep 1000")
    runner.start(process, {}, 1.0)
    guard = runner.observe(process).guard_pid
    assert guard is not None
    held = living.held(guard)
    assert {"null", "guard.log"} <= {Path(name).name for name in held}
    assert not [name for name in held if name.startswith(("pipe:", "socket:"))]
    assert os.getsid(guard) != os.getsid(0)


def test_after_a_kill_of_the_guard_the_process_is_ended_all_the_same(
    runner: RemoteRunner,
    make_process: Callable[..., Process],
    wait_until: Callable[..., None],
    is_alive: Callable[[int], bool],
) -> None:
    process = make_process("sleep 1000 & wait")
    started = runner.start(process, {}, 1.0)
    os.kill(started.guard_pid, signal.SIGKILL)
    wait_until(lambda: not runner.observe(process).guard_alive)
    assert runner.observe(process).state == "running"
    assert started.pid in runner.stop(process, 0.5).ended
    assert not is_alive(started.pid)


def test_following_goes_on_into_the_log_of_the_next_start_and_ends_when_closed(
    runner: RemoteRunner, make_process: Callable[..., Process], wait_until: Callable[..., None]
) -> None:
    process = make_process("seq 5")
    runner.start(process, {}, 1.0)
    wait_until(lambda: runner.observe(process).state == "exited")
    collected: list[str] = []
    lines = runner.follow(process, 2)

    def collect() -> None:
        for line in islice(lines, 4):
            collected.append(line)  # one by one, as the test looks on

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    wait_until(lambda: collected == ["4", "5"])
    runner.start(make_process("printf 'a\\nb'; sleep 0.3; printf 'c\\n'; sleep 1000"), {}, 1.0)
    reader.join(20)
    assert collected == ["4", "5", "a", "bc"]
    lines.close()  # type: ignore[attr-defined]  # the fake waits for the end of the command: it comes although the log is silent


def test_logs_with_more_than_ascii_arrive_whole(
    runner: RemoteRunner, make_process: Callable[..., Process], wait_until: Callable[..., None]
) -> None:
    process = make_process(r"printf 'p0→d0\n\377\n'; sleep 1000")
    runner.start(process, {}, 1.0)
    wait_until(lambda: len(runner.tail(process, 5)) == 2)
    assert runner.tail(process, 5) == ["p0→d0", "\N{REPLACEMENT CHARACTER}"]
    assert list(islice(runner.follow(process, 5), 2)) == runner.tail(process, 5)


def test_a_process_is_restarted_there_and_its_last_life_can_be_read(
    runner: RemoteRunner, make_process: Callable[..., Process], wait_until: Callable[..., None]
) -> None:
    script = "[ -e seen ] && echo now && exec sleep 1000; touch seen; echo before; exit 1"
    process = make_process(script)
    runner.start(process, {}, 1.0, restart=Restart())
    wait_until(lambda: runner.observe(process).generation == 2)
    wait_until(lambda: runner.tail(process, 5) == ["now"])
    assert runner.tail(process, 5, before=True) == ["before"]
    seen = runner.observe(process)
    assert (seen.state, seen.generation, seen.last_end) == ("running", 2, "exit code 1")


def test_there_is_no_tail_where_there_is_no_log(
    runner: RemoteRunner, make_process: Callable[..., Process]
) -> None:
    assert runner.tail(make_process("true"), 5) == []
    assert runner.observe(make_process("true")).state == "never"


def test_d09_ports_that_are_taken_on_the_node_are_named_with_their_holder(
    runner: RemoteRunner,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = Address("127.0.0.1", held.getsockname()[1])
        elsewhere = Address("192.0.2.77", 9)  # RFC 5737: never assigned
        busy = runner.busy_ports([taken, elsewhere])
    assert busy[taken].startswith(f"pid {os.getpid()} (")
    assert "cannot be bound here" in busy[elsewhere]
    assert runner.busy_ports([taken]) == {}


def test_what_runs_is_found_by_its_mark(
    runner: RemoteRunner, make_process: Callable[..., Process]
) -> None:
    pids = {
        name: runner.start(make_process("sleep 1000", name), {}, 1.0).pid for name in ("d0", "p0")
    }
    found = runner.find(["~/.vdisagg/demo", "~/.vdisagg/other"])
    assert {one.name: one.living[0] for one in found} == pids
    assert {(one.kind, one.mark) for one in found} == {("prefill", MARK)}
    runner.stop_all([make_process("", "d0"), make_process("", "p0")], 0.5)
    assert [one.living for one in runner.find(["~/.vdisagg/demo"])] == [(), ()]


def test_files_are_removed_there_where_they_are_there(
    runner: RemoteRunner, connection: FakeConnection, make_process: Callable[..., Process]
) -> None:
    process = make_process("true")
    runner.start(process, {}, 1.0, {"a": "1", "b": "2"})
    runner.remove(process, ["nothing", "a"])
    directory = connection.home / ".vdisagg/demo/p0"
    assert not (directory / "a").exists()
    assert (directory / "b").exists()
    (directory / "c").mkdir()
    with pytest.raises(Failure, match=r"/demo/p0/c"):
        runner.remove(process, ["c"])


def test_d05_without_a_python_the_node_and_what_to_do_are_named(
    runner: RemoteRunner, connection: FakeConnection, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "head"):
        (tools / name).symlink_to(f"/bin/{name}")
    connection.path = str(tools)
    with pytest.raises(
        Failure, match=r"n1: no Python 3\.8 .*python3: not found; python: not found.*nodes\.n1"
    ):
        runner.find(["~/x"])
    old = tools / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.6.8 && exit\nexit 9\n')
    old.chmod(0o755)
    with pytest.raises(Failure, match=r"python3: Python 3\.6\.8; python: not found"):
        runner.find(["~/x"])


def test_d05_the_nodes_own_python_serves_where_the_path_has_none(
    connection: FakeConnection, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    connection.path = str(tools)
    (connection.home / "venv").mkdir()
    (connection.home / "venv/python").symlink_to("/usr/bin/python3")
    node = msgspec.structs.replace(NODE, python="~/venv/python")
    with runner_over(connection, node) as runner:
        assert runner.find(["~/x"]) == []


def test_a_broken_connection_is_said_and_no_state_is_lost_with_it(
    runner: RemoteRunner, connection: FakeConnection, make_process: Callable[..., Process]
) -> None:
    process = make_process("sleep 1000")
    started = runner.start(process, {}, 1.0)
    connection.cut = True
    with pytest.raises(Unreachable, match="n1: "):
        runner.observe(process)
    connection.cut = False
    assert runner.observe(process).pid == started.pid
