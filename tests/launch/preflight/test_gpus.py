"""What nvidia-smi says, and what is made of it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from vdisagg.launch.preflight.node import gpus

TWO = """\
0, GPU-5a7f0a1c-0c5e-9a0e-6b55-1f1f0d1a6f01, 81559, 0, NVIDIA H100 80GB HBM3
1, GPU-b2d1e9b4-27ac-53a4-8d9b-9d1f4c3e7a02, 81559, 70213, NVIDIA H100 80GB HBM3
"""
MIG_AND_KEPT_BACK = """\
0, GPU-5a7f0a1c-0c5e-9a0e-6b55-1f1f0d1a6f01, 81559, [N/A], NVIDIA A100-SXM4-80GB
1, GPU-b2d1e9b4-27ac-53a4-8d9b-9d1f4c3e7a02, [Insufficient Permissions], [Insufficient Permissions], NVIDIA Graphics, Device
"""
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running.\n"
)


@pytest.fixture
def smi(tmp_path: Path) -> dict[str, str]:
    """An environment whose nvidia-smi says two GPUs, and this test as the holder of the second."""
    script = tmp_path / "nvidia-smi"
    script.write_text(
        f"""#!/bin/sh
case $1 in
  --query-gpu=*) cat <<'END'
{TWO}END
  ;;
  *) echo 'GPU-b2d1e9b4-27ac-53a4-8d9b-9d1f4c3e7a02, {os.getpid()}, 70200' ;;
esac
"""
    )
    script.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_gpus_and_the_pid_and_user_that_hold_them(smi: dict[str, str]) -> None:
    seen = gpus.look(smi)
    assert seen["fault"] == ""
    assert [(g["index"], g["total_mib"], g["used_mib"]) for g in seen["gpus"]] == [
        (0, 81559, 0),
        (1, 81559, 70213),
    ]
    (holder,) = seen["holders"]
    assert (holder["uuid"], holder["pid"]) == (seen["gpus"][1]["uuid"], os.getpid())
    assert holder["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert "pytest" in holder["command"]


def test_figures_that_are_kept_back_are_not_known_and_names_may_hold_commas() -> None:
    found = gpus.parse_gpus(MIG_AND_KEPT_BACK)
    assert [(g["total_mib"], g["used_mib"]) for g in found] == [(81559, None), (None, None)]
    assert found[1]["name"] == "NVIDIA Graphics, Device"


def test_a_holder_whose_memory_is_kept_back_is_a_holder_all_the_same() -> None:
    assert gpus.parse_holders("GPU-1, 4242, [N/A]\n") == [
        {"uuid": "GPU-1", "pid": 4242, "used_mib": None}
    ]


def test_no_devices_are_no_gpus() -> None:
    assert gpus.parse_gpus("No devices were found\n") == []
    assert gpus.parse_gpus("\n") == []


def test_an_answer_of_another_form_is_a_fault_and_not_an_idle_gpu() -> None:
    with pytest.raises(ValueError, match="answered"):
        gpus.parse_holders("Field 'gpu_uuid' is not a valid field to query.\n")
    with pytest.raises(ValueError, match="answered"):
        gpus.parse_gpus("ERROR, GPU-1, 1, 2, x\n")


def test_a_driver_that_does_not_answer_is_told_in_its_own_words(tmp_path: Path) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(f'#!/bin/sh\necho "{NO_DRIVER}"\nexit 9\n')
    script.chmod(0o755)
    seen = gpus.look({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "exit code 9: NVIDIA-SMI has failed because it couldn't communicate" in seen["fault"]
    assert seen["gpus"] == []


def test_without_nvidia_smi_that_is_the_fault(tmp_path: Path) -> None:
    if Path("/usr/bin/nvidia-smi").exists():
        pytest.skip("this machine has one")
    assert gpus.look({"PATH": str(tmp_path)})["fault"] == "nvidia-smi is not on PATH"


def test_a_pid_that_cannot_be_seen_has_neither_user_nor_command() -> None:
    holder = gpus.describe({"uuid": "GPU-1", "pid": 0, "used_mib": 1})
    assert (holder["user"], holder["command"]) == ("", "")
