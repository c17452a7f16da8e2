"""A link that brings the wrong KV cache is never used: engines whose weights differ, all else being alike.

Honest wrongness: the model's folder holds two weight files, of two formats and with different numbers, as
after an update that was half done. Prefill loads the one and decode the other. Every check of settings
passes, and so does the connector's own; the blocks arrive, and mean nothing to who reads them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from real.conftest import MODELS, RealCluster, cluster_at

pytestmark = pytest.mark.real

OTHER_WEIGHTS = """
import sys, torch
from safetensors.torch import load_file
weights = load_file(sys.argv[1] + "/model.safetensors")
torch.manual_seed(7)
torch.save({k: v[torch.randperm(len(v))].clone() for k, v in weights.items()}, sys.argv[1] + "/model.pt")
"""


@pytest.fixture
def halves(tmp_path: Path) -> RealCluster:
    """A cluster whose decode engine has other weights than its prefill engine. Not up."""
    model = tmp_path / "halves"
    shutil.copytree(MODELS / "tiny", model)
    subprocess.run([sys.executable, "-c", OTHER_WEIGHTS, str(model)], check=True, timeout=120)
    return cluster_at(
        tmp_path,
        "halves",
        str(model),
        prefill={"node": "here", "args": {"load_format": "safetensors"}},
        decode={"node": "here", "args": {"load_format": "pt"}},
    )


def test_d12_engines_with_different_weights_never_serve_and_up_says_why(
    halves: RealCluster,
) -> None:
    try:
        run = halves.home.vdisagg("up", str(halves.file), check=False)
    finally:
        halves.down()
    assert run.returncode == 1
    assert "the KV cache does not arrive intact" in run.stderr
    assert "link p0→d0: " in run.stderr
    assert "same weights" in run.stderr
