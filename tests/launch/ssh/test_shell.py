"""A line means the same to every login shell, and only the command's own output counts."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from vdisagg.launch.ssh.shell import PIECE, Stream, command, for_any_shell, watched_command

NASTY = "it's \"$HOME\" `id` $(id) !! !x \\ \\\\n \\' % %s *? ~ {a,b} # ; & | <> [x] ^a^b\ttab\nnew\n\nline é €"
SHELLS = ["sh", "bash", "dash", "zsh", "fish", "tcsh", "csh", "ksh", "mksh", "yash"]
TOKEN = "0123abcd" * 4


@pytest.mark.parametrize("shell", [pytest.param(name, id=name) for name in SHELLS])
def test_d05_words_arrive_whole_through_any_login_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = ("printf", "%s|", NASTY, "", "-n", "x" * 3000)
    line = command(words, TOKEN)
    done = subprocess.run([shell, "-c", line], capture_output=True, timeout=20, check=False)
    stream = Stream(TOKEN)
    assert stream.feed(done.stdout).decode() == f"{NASTY}||-n|{'x' * 3000}|"
    assert stream.code == 0


def test_a_line_has_no_character_that_means_something_to_a_shell_in_quotes() -> None:
    line = for_any_shell(f"echo {NASTY}")
    inner = line.removeprefix('exec sh -c \'eval "$(printf %b "$@")"\' sh ')
    assert line.isascii()
    assert line.isprintable()
    assert "!" not in line
    pieces = inner.split("' '")
    assert all("'" not in piece for piece in inner[1:-1].split("' '"))
    assert max(map(len, pieces)) <= PIECE + 2


def test_no_escape_is_split_between_two_pieces() -> None:
    line = for_any_shell("'" * 5000)
    assert all(
        piece.strip("'").count("\\") * 5 == len(piece.strip("'"))
        for piece in line.partition(" sh ")[2].partition(" sh ")[2].split()
    )


def test_a_line_does_not_contain_the_marker_that_it_prints() -> None:
    assert f"vdisagg-{TOKEN}" not in command(("true",), TOKEN)
    assert f"vdisagg-{TOKEN}" not in watched_command(("true",), TOKEN)


def test_d05_noise_before_and_after_is_dropped_at_any_cut() -> None:
    sent = f"Welcome!\nvdisagg-\nvdisagg-{TOKEN}<\nout vdisagg-\nvdis vdisagg-{TOKEN}>17\nbye\n"
    for at in range(len(sent)):
        stream = Stream(TOKEN)
        own = stream.feed(sent[:at].encode()) + stream.feed(sent[at:].encode())
        assert own == b"out vdisagg-\nvdis "
        assert stream.code == 17


def test_output_is_passed_on_at_once_unless_it_may_be_a_marker() -> None:
    stream = Stream(TOKEN)
    stream.feed(f"vdisagg-{TOKEN}<\n".encode())
    assert stream.feed(b"line\n") == b"line\n"
    assert stream.feed(b"x vdis") == b"x "
    assert stream.feed(b"tant\n") == b"vdistant\n"
    assert stream.code is None


def test_a_code_that_is_cut_in_two_is_read_whole() -> None:
    stream = Stream(TOKEN)
    stream.feed(f"vdisagg-{TOKEN}<\nvdisagg-{TOKEN}>1".encode())
    assert stream.code is None
    stream.feed(b"27\n")
    assert stream.code == 127
