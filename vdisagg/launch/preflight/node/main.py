"""One step on a node: a job in, an answer out, between markers."""

from __future__ import annotations

import json
import sys
from typing import Any

from vdisagg.launch.preflight.node import machine, paths

BEGIN, END = "<<<vdisagg-preflight ", " vdisagg-preflight>>>"
STEPS = {"look": machine.look, "listen": paths.listen, "dial": paths.dial}


def main(job: dict[str, Any]) -> None:
    """Carry out `job["step"]`."""
    answer = STEPS[job["step"]](job)
    sys.stdout.write(f"\n{BEGIN}{json.dumps(answer)}{END}\n")
    sys.stdout.flush()
