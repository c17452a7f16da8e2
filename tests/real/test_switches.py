"""The switches under stock vLLM's own calls: that its sockets are made by what they patch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from vdisagg.launch.local import SWITCHES

pytestmark = pytest.mark.real

DIAL = """
import json, zmq
from vllm.utils.network_utils import make_zmq_socket
told = []
with zmq.Context() as context:
    for kind in (zmq.DEALER, zmq.PUSH):
        with make_zmq_socket(context, "tcp://127.0.0.1:9", kind, bind=False, linger=0) as dialled:
            told.append([dialled.HEARTBEAT_IVL, dialled.HEARTBEAT_TIMEOUT])
print(json.dumps(told))
"""


def test_vllms_sockets_to_the_controller_ping_when_told_to() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SWITCHES), "VDISAGG_PING_S": "2"}
    done = subprocess.run(
        [sys.executable, "-c", DIAL], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[2000, 3000], [2000, 3000]]
