"""A command over a real sshd that is spoken to: what goes in, what comes out, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from launch.ssh.conftest import Start
from launch.ssh.test_connection import NOISE, is_running, open_to, wait_until
from vdisagg.errors import Unreachable
from vdisagg.launch.ssh import shell
from vdisagg.launch.ssh.talk import Talk

if TYPE_CHECKING:
    from hosts.sshd import Sshd
    from vdisagg.launch.ssh.connection import Connection

ECHO = ("sh", "-c", 'echo "$$"; while read -r line; do echo "<$line>"; done; echo end >&2')


def test_what_is_said_comes_back_line_by_line(connection: Connection) -> None:
    with closing(connection.talk(ECHO)) as talk:
        lines = talk.lines()
        next(lines)
        for word in ("one", "two"):
            talk.send(f"{word}\n".encode(), limit_s=10)
            assert next(lines) == f"<{word}>"


def test_d05_what_rc_files_print_is_not_among_its_lines(start_sshd: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text(NOISE)
    with (
        open_to(start_sshd(home=home)) as connection,
        closing(connection.talk(("sh", "-c", "echo a; echo b; echo err >&2"))) as talk,
    ):
        assert list(talk.lines()) == ["a", "b"]
        assert talk.stderr == "err"


class InPieces:
    """A connection on which a command's outputs come in pieces that a test gives."""

    alive = True

    def __init__(self, *pieces: tuple[bytes, bytes]) -> None:
        self._pieces = pieces

    def pieces(self, channel: object) -> Iterator[tuple[bytes, bytes]]:
        yield from self._pieces

    def give_up(self, fault: str) -> None: ...

    def broken(self) -> Unreachable:
        return Unreachable("broken")

    def no_end(self, stdout: shell.Stream) -> Unreachable:
        return Unreachable("no end")


def outputs(*pieces: tuple[bytes, bytes]) -> Talk:
    return Talk(InPieces(*pieces), Mock(), "t", Mock())


def test_what_it_said_on_stderr_is_known_whichever_output_comes_first() -> None:
    out, err = b"vdisagg-t<\na\nvdisagg-t>1\n", b"vdisagg-t<\nerr\nvdisagg-t>1\n"
    for pieces in (((out, b""), (b"", err)), ((b"", err), (out, b"")), ((out, err),)):
        talk = outputs(*pieces, (b"", b"not its own any more"))
        assert (list(talk.lines()), talk.stderr) == (["a"], "err")


def test_it_has_ended_when_stdout_has_whatever_became_of_stderr() -> None:
    talk = outputs((b"vdisagg-t<\na\nvdisagg-t>1\n", b"vdisagg-t<\ner"))
    assert (list(talk.lines()), talk.stderr) == (["a"], "er")
    with pytest.raises(Unreachable, match="no end"):
        list(outputs((b"vdisagg-t<\na\n", b"vdisagg-t<\nvdisagg-t>1\n")).lines())


def test_d15_megabytes_in_one_line_arrive_whole_both_ways(connection: Connection) -> None:
    text = "0123456789" * 500_000  # more than the channel's window
    with closing(connection.talk(("cat",))) as talk, ThreadPoolExecutor(1) as listener:
        line = listener.submit(next, talk.lines())
        talk.send(f"{text}\n".encode(), limit_s=60)
        assert line.result(60) == text


def test_it_ends_over_there_when_it_is_let_go_and_gives_its_session_back(
    start_sshd: Start,
) -> None:
    with open_to(start_sshd(options=("MaxSessions 1",))) as connection:
        pids: list[int] = []
        for _ in range(3):
            with closing(connection.talk(ECHO)) as talk:
                pids.append(int(next(talk.lines())))
            wait_until(lambda: not is_running(pids[-1]))


def test_a_connection_that_breaks_is_said_to_who_listens_and_to_who_speaks(
    sshd: Sshd, connection: Connection
) -> None:
    talk = connection.talk(ECHO)
    lines = talk.lines()
    next(lines)
    sshd.drop_connections()
    with pytest.raises(Unreachable, match="n1: the SSH connection broke"):
        next(lines)
    with pytest.raises(Unreachable, match="n1: the SSH connection broke"):
        talk.send(b"word\n", limit_s=10)
    talk.close()


def test_to_speak_to_a_command_that_has_ended_is_no_fault(connection: Connection) -> None:
    with closing(connection.talk(("true",))) as talk:
        assert list(talk.lines()) == []
        talk.send(b"word\n", limit_s=10)
