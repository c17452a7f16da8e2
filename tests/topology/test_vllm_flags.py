"""Our list of vLLM's flags is vLLM's list."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from vdisagg.topology import vllm_flags

ASK_VLLM = """
import argparse, json
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = ServeSubcommand().subparser_init(FlexibleArgumentParser().add_subparsers())
actions = [a for a in parser._actions if "--help" not in a.option_strings]
flags = [o[2:] for a in actions for o in a.option_strings if o[:2] == "--" and o[:5] != "--no-"]
short = {a.option_strings[0][2:]: [o[1:] for o in a.option_strings if o[1:2] != "-"] for a in actions
         if a.option_strings and a.option_strings[0].startswith("--")}
switches = [a.option_strings[0][2:] for a in actions
            if a.nargs == 0 and not isinstance(a, argparse.BooleanOptionalAction)]
print(json.dumps({"flags": flags, "short": short, "switches": switches}))
"""


def test_no_flag_concerns_both_one_side_and_all() -> None:
    assert not vllm_flags.ENGINE_ONLY & vllm_flags.SHARED


@pytest.mark.real
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_vllm_has_exactly_these_flags() -> None:
    env = os.environ | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", ASK_VLLM], capture_output=True, text=True, check=True, env=env
    )
    vllm = json.loads(done.stdout.splitlines()[-1])
    assert set(vllm["flags"]) == vllm_flags.ALL
    assert set(vllm["switches"]) == vllm_flags.SWITCHES
    for flag, names in vllm["short"].items():
        if not flag.startswith("data-parallel") and flag != "api-server-count":
            assert {vllm_flags.SHORT[name] for name in names} <= {flag.replace("-", "_")}
