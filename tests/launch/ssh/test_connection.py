"""Commands, files and lines over a real sshd: nothing of them hangs, and noise does not matter."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from hosts.sshd import Sshd
from launch.ssh.conftest import Start
from vdisagg.errors import Unreachable
from vdisagg.launch.ssh.connect import connect
from vdisagg.launch.ssh.connection import CHANNELS, Completed, Connection
from vdisagg.plan.model import Ssh

MEGABYTE = 1_000_000
NOISE = 'echo Welcome; echo "3 updates"; echo no newline | tr -d "\\n"; echo locale >&2\n'


def open_to(sshd: Sshd, *lines: str) -> Connection:
    config = sshd.ssh_config("node")
    with config.open("a") as file:
        file.writelines(f"  {line}\n" for line in lines)
    return connect("n1", Ssh("node"), config=config)


def wait_until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_command_s_outputs_and_code_come_back_apart(connection: Connection) -> None:
    done = connection.run(("sh", "-c", "echo yes; echo no >&2; exit 7"), limit_s=10)
    assert done == Completed(7, "yes\n", "no\n")


def test_a_command_that_reads_finds_its_input_at_its_end(connection: Connection) -> None:
    assert connection.run(("cat",), limit_s=10) == Completed(0, "", "")


def test_words_are_quoted_once_and_for_good(connection: Connection) -> None:
    nasty = "it's $HOME `id` !! \\ \" \n é *"
    assert connection.run(("printf", "%s", nasty), limit_s=10).stdout == nasty


def test_a_command_that_is_not_there_has_code_127(connection: Connection) -> None:
    done = connection.run(("no-such-command",), limit_s=10)
    assert done.code == 127
    assert "no-such-command" in done.stderr


def test_d05_what_rc_files_print_is_dropped(start_sshd: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text(NOISE)
    with open_to(start_sshd(home=home)) as connection:
        done = connection.run(("sh", "-c", "echo out; echo err >&2"), limit_s=10)
        assert done == Completed(0, "out\n", "err\n")
        assert list(connection.lines(("printf", "a\\nb"))) == ["a", "b"]


def test_d05_a_login_shell_that_runs_nothing_is_named(start_sshd: Start) -> None:
    with open_to(start_sshd(options=("ForceCommand echo This account is closed.",))) as connection:
        with pytest.raises(Unreachable, match=r"^n1: .*it said: This account is closed\."):
            connection.run(("true",), limit_s=10)
        with pytest.raises(Unreachable, match=r"This account is closed\."):
            list(connection.lines(("true",)))


def test_d15_ten_megabytes_on_both_outputs_do_not_block(connection: Connection) -> None:
    script = (
        "head -c 10000000 /dev/zero; head -c 10000000 /dev/zero >&2; head -c 10000000 /dev/zero"
    )
    done = connection.run(("sh", "-c", script), limit_s=60)
    assert (len(done.stdout), len(done.stderr)) == (20 * MEGABYTE, 10 * MEGABYTE)


def test_d15_a_command_that_never_ends_is_given_up_and_the_connection_lives(
    connection: Connection,
) -> None:
    with pytest.raises(Unreachable, match=r"^n1: `sleep 300` did not end within 4 s; next: "):
        connection.run(("sleep", "300"), limit_s=4)
    assert connection.run(("echo", "here"), limit_s=10).stdout == "here\n"


def test_what_a_command_leaves_in_the_background_is_not_waited_for(connection: Connection) -> None:
    done = connection.run(("sh", "-c", "sleep 300 & echo $!"), limit_s=10)
    os.kill(int(done.stdout), signal.SIGKILL)


def test_d15_many_commands_at_once_all_come_through(start_sshd: Start) -> None:
    sshd = start_sshd(options=("MaxSessions 4",))
    with open_to(sshd) as connection, ThreadPoolExecutor(24) as threads:
        done = threads.map(lambda n: connection.run(("echo", str(n)), limit_s=60), range(48))
        assert [d.stdout for d in done] == [f"{n}\n" for n in range(48)]


def test_no_more_than_eight_commands_run_at_once(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    script = f"cd {tmp_path}/running && touch $$ && ls | wc -l && sleep 0.1 && rm $$"
    with ThreadPoolExecutor(24) as threads:
        done = threads.map(lambda _: connection.run(("sh", "-c", script), limit_s=60), range(40))
        assert max(int(d.stdout) for d in done) <= CHANNELS


def test_a_server_that_opens_no_session_is_named(start_sshd: Start) -> None:
    with (
        open_to(start_sshd(options=("MaxSessions 0",))) as connection,
        pytest.raises(Unreachable, match=r"opened no session within 4 s.*MaxSessions"),
    ):
        connection.run(("true",), limit_s=4)


def test_lines_come_as_they_are_written(connection: Connection, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo one; until [ -e {go} ]; do sleep 0.05; done; echo two; printf three"
    lines = connection.lines(("sh", "-c", script))
    assert next(lines) == "one"
    go.touch()
    assert list(lines) == ["two", "three"]


def test_closing_lines_ends_the_command(connection: Connection) -> None:
    lines = connection.lines(("sh", "-c", "echo $$; exec sleep 300"))
    with closing(lines):  # type: ignore[type-var]  # a generator
        pid = int(next(lines))
        assert is_running(pid)
    wait_until(lambda: not is_running(pid))


def test_the_end_of_the_connection_ends_the_command_of_lines(sshd: Sshd) -> None:
    with open_to(sshd) as connection:
        lines = connection.lines(("sh", "-c", "echo $$; exec sleep 300"))
        pid = int(next(lines))
    with pytest.raises(Unreachable, match="closed here"):
        next(lines)
    wait_until(lambda: not is_running(pid))


def test_a_server_that_goes_breaks_what_is_under_way(sshd: Sshd) -> None:
    with open_to(sshd) as connection:
        lines = connection.lines(("sh", "-c", "echo begun; sleep 300"))
        assert next(lines) == "begun"
        sshd.drop_connections()
        with pytest.raises(Unreachable, match=r"^n1: the SSH connection broke.*; next: "):
            next(lines)
        assert not connection.alive
        with pytest.raises(Unreachable, match="broke"):
            connection.run(("true",), limit_s=10)


def freeze(sshd: Sshd) -> None:
    """Stop all of its logins: the kernel still takes what is sent, and nobody answers."""
    for pid, _ in sshd.logins():
        with suppress(ProcessLookupError):  # what served the login alone has ended meanwhile
            os.kill(pid, signal.SIGSTOP)


def test_d15_a_node_that_stands_still_breaks_a_command_within_its_limit(sshd: Sshd) -> None:
    with open_to(sshd) as connection:
        freeze(sshd)
        with pytest.raises(Unreachable, match=r"^n1: no answer within 1 s; next: "):
            connection.run(("true",), limit_s=1)


def test_e04_a_node_that_stands_still_is_noticed_by_keepalives(sshd: Sshd) -> None:
    with open_to(sshd, "ServerAliveInterval 1", "ServerAliveCountMax 4") as connection:
        lines = connection.lines(("sh", "-c", "echo begun; sleep 300"))
        assert next(lines) == "begun"
        freeze(sshd)
        with pytest.raises(Unreachable, match="no sign of life for 5 s"):
            next(lines)


def test_closing_does_not_wait_for_a_node_that_stands_still(sshd: Sshd) -> None:
    connection = open_to(sshd)
    lines = connection.lines(("sh", "-c", "echo begun; sleep 300"))
    next(lines)
    freeze(sshd)
    begun = time.monotonic()
    connection.close()
    assert time.monotonic() - begun < 20
    assert not connection.alive


def test_a_command_has_the_environment_of_set_env(start_sshd: Start) -> None:
    sshd = start_sshd(options=("AcceptEnv ONE TWO",))
    with open_to(sshd, 'SetEnv ONE="a b" TWO=c=d') as connection:
        words = ("printenv", "ONE", "TWO")
        assert connection.run(words, limit_s=10).stdout == "a b\nc=d\n"
        assert list(connection.lines(words)) == ["a b", "c=d"]


def test_a_live_connection_outlasts_many_keepalives(sshd: Sshd) -> None:
    with open_to(sshd, "ServerAliveInterval 1", "ServerAliveCountMax 4") as connection:
        assert connection.run(("sleep", "8"), limit_s=60).code == 0
        assert connection.alive


def test_no_thread_is_left_after_close(sshd: Sshd) -> None:
    before = set(threading.enumerate())
    with open_to(sshd) as connection:
        connection.run(("true",), limit_s=10)
        assert set(threading.enumerate()) > before
    wait_until(lambda: set(threading.enumerate()) <= before)
