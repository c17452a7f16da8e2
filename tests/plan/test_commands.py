"""The line that `check --commands` prints is the process that `up` starts."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from vdisagg.plan.commands import command_line
from vdisagg.plan.model import Process, Secret

if TYPE_CHECKING:
    from pathlib import Path

SHOW = ("sh", "-c", 'printf "%s|" "$A" "$KEY" "$TOKEN" "$@"', "sh")


def process(*words: str, secrets: tuple[Secret, ...] = ()) -> Process:
    return Process(
        name="p0",
        kind="prefill",
        node="here",
        argv=(*SHOW, *words),
        env={"A": "it's $HOME; ls"},
        directory="/d",
        secrets=secrets,
    )


def test_a_whole_line() -> None:
    secrets = (Secret("TOKEN", from_env="MY_TOKEN"), Secret("KEY", from_file="/a b"))
    plain = Process("p", "prefill", "n", ("vllm", "x y"), {"A": "1"}, "/d", secrets)
    assert command_line(plain) == ("""A=1 TOKEN="$MY_TOKEN" KEY="$(cat '/a b')" vllm 'x y'""")


@pytest.mark.parametrize(
    "word", ["plain", '{"a":"b c"}', "it's", "$HOME", "`ls`", "a\nb", "", "é", "-x"]
)
def test_a_shell_reads_the_line_as_the_same_words(word: str, tmp_path: Path) -> None:
    key = tmp_path / "a key's file"
    key.write_text("s3cret$1")
    secrets = (Secret("KEY", from_file=str(key)), Secret("TOKEN", from_env="MY_TOKEN"))
    line = command_line(process(word, "last", secrets=secrets))
    env = os.environ | {"MY_TOKEN": "to ken"}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == f"it's $HOME; ls|s3cret$1|to ken|{word}|last|"
    assert "s3cret" not in line
    assert "to ken" not in line
