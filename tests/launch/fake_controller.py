"""A stand-in for `python -m vdisagg.control STATE_DIR`: answers the admin API out of files.

An engine or front end is ready once the file `ready` is in its process's directory; where a pid stands in it,
that is whose word it is, and a process that was started since is not ready by it. It is dead since the
Unix time that stands in a file `dead` there. With a file `garbles` a decode engine reads something else
than prefill wrote.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from vdisagg.cluster import record
from vdisagg.cluster.admin import (
    SOCKET_NAME,
    ControllerStatus,
    FrontState,
    InstanceStatus,
    LinkStatus,
    Totals,
)


def is_ready(directory: Path) -> bool:
    try:
        said = (directory / "ready").read_text().strip()
        written = (directory / record.PROCESS_FILE).read_text()
    except FileNotFoundError:
        return (directory / "ready").exists()
    process = msgspec.json.decode(written or "{}")
    return not said or "pid" not in process or int(said) == process["pid"]


def status(directory: Path, started: float) -> ControllerStatus:
    recorded = record.read(directory)
    assert recorded is not None
    plan = recorded.plan
    ready = {p.name: is_ready(Path(p.directory)) for p in plan.processes()}
    instances = [
        InstanceStatus(i.name, i.role, "ready" if ready[i.name] else "connected", started)
        for i in plan.instances
    ]
    for status, instance in zip(instances, plan.instances, strict=True):
        dead = Path(instance.process.directory) / "dead"
        if dead.exists():
            status.state, status.since, status.reason = "dead", float(dead.read_text()), "it hangs"
    directories = {i.name: i.process.directory for i in plan.instances}
    links = [
        LinkStatus(p.name, d.name, "warm" if ready[p.name] and ready[d.name] else "cold")
        for p in plan.instances
        for d in plan.instances
        if p.role == "prefill" and d.role == "decode"
    ]
    for link in links:
        if (Path(directories[link.decode]) / "garbles").exists() and link.state == "warm":
            link.state, link.reason = "down", "token 1 of 8 is 5, where it computes 6 alone"
    front: FrontState = "attached" if ready[plan.front_end.process.name] else "waiting"
    front = "gone" if (Path(plan.front_end.process.directory) / "gone").exists() else front
    return ControllerStatus(os.getpid(), started, front, instances, links, Totals())


def main(directory: Path) -> None:
    started = time.time()
    path = directory / SOCKET_NAME
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(directory)  # sun_path is short
        listener.bind(SOCKET_NAME)
        listener.listen(16)
        while True:
            connection, _ = listener.accept()
            # Who has waited for too long has gone.
            with suppress(OSError), connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(msgspec.json.encode(status(directory, started)) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
