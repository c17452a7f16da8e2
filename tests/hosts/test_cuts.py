"""Nodes that are lost: before, during and after; clear words within the deadlines, and nothing left."""

from __future__ import annotations

import time

from hosts.bed import PROMPT, Bed, send, until
from hosts.network import Host

SHORT = {"launch_s": 60, "stop_s": 1, "request_s": 4}


def runs(host: Host, what: str) -> bool:
    """Whether there is a process with these words in its command line."""
    return any(what in words for words in host.processes().values())


def recovered(bed: Bed) -> None:
    """What was left goes with one more `down`."""
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_a_node_that_is_down_is_named_and_the_others_are_left_alone(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    n3 = bed.node("n3")
    file = bed.topology([n1, n2, n3], decode={"instances": [{"node": "n2"}, {"node": "n3"}]})
    n2.cut()
    n3.sshds[0].stop()
    up = bed.vdisagg("up", file, check=False)
    assert up.returncode == 1
    assert "n2" in up.stderr
    assert "n3" in up.stderr, "one broken node hides no other's error"
    assert "n1" not in up.stderr.replace("net.yaml", "")
    bed.nothing_is_left()


def test_a_node_is_lost_while_the_cluster_starts(bed: Bed) -> None:
    """What other nodes have begun is undone at once; what is on the lost one, by the next `down`."""
    n1, n2 = bed.nodes(2)
    engine = {"env": {"STUB_LOAD_S": 15}}
    file = bed.topology([n1, n2], engine=engine, timeouts={**SHORT, "launch_s": 30})
    with bed.start("up", file) as up:
        until(lambda: runs(n1, "--headless") and runs(n2, "--headless"))
        n2.cut()
        said = up.communicate(timeout=120)[1]
    assert up.returncode == 1, said
    assert "d0" in said
    assert "n2" in said
    until(lambda: not n1.processes() and not bed.here.processes(), lambda: str(bed.left()))
    assert runs(n2, "--headless"), "else nothing was left, and this test proves nothing"
    n2.restore()
    recovered(bed)


def test_a_node_is_lost_while_the_cluster_serves_and_comes_back(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    beats = {"interval_s": 1, "misses": 2}
    bed.vdisagg("up", bed.topology([n1, n2], timeouts=SHORT, heartbeat=beats))
    bed.serves()
    n2.cut()
    begun = time.monotonic()
    status, answer = bed.post({"prompt": PROMPT, "max_tokens": 8, "temperature": 0})
    assert status >= 500, answer
    assert time.monotonic() - begun < 20, "request_s is 4"
    until(lambda: bed.status()["healthy"] is False)
    said = bed.vdisagg("status", check=False)
    assert said.returncode == 1
    assert "n2" in said.stdout
    assert "Traceback" not in said.stderr
    n2.restore()
    until(lambda: bed.status()["healthy"] is True, lambda: str(bed.status()), limit_s=90)
    bed.serves()
    assert runs(n2, "--headless")
    recovered(bed)


def test_a_node_is_lost_before_down(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    bed.vdisagg("up", bed.topology([n1, n2], timeouts=SHORT))
    n2.cut()
    down = bed.vdisagg("down", check=False)
    assert down.returncode == 1
    assert "d0" in down.stderr
    assert "n2" in down.stderr
    assert "p0" not in down.stderr
    bed.nothing_is_left(but=["n2"])
    assert runs(n2, "--headless"), "else nothing was left, and this test proves nothing"
    n2.restore()
    recovered(bed)


def test_a_node_is_lost_during_down(bed: Bed) -> None:
    """It has been told to end an engine that will not, and is lost before it says how that went."""
    n1, n2 = bed.nodes(2)
    deaf = {"n2": {"env": {"STUB_DEAF": 1}}}
    bed.vdisagg("up", bed.topology([n1, n2], nodes=deaf, timeouts={**SHORT, "stop_s": 20}))
    with bed.start("down") as down:
        until(lambda: runs(n2, "guard.py stop"))
        n2.cut()
        said = down.communicate(timeout=120)[1]
    assert down.returncode == 1, said
    assert "n2" in said
    bed.nothing_is_left(but=["n2"])
    n2.restore()
    recovered(bed)


def test_a_node_that_was_rebooted_has_lost_its_engine_and_says_so(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    bed.vdisagg("up", bed.topology([n1, n2], timeouts=SHORT))
    n2.reboot()
    until(lambda: bed.status()["healthy"] is False)
    assert "d0" in bed.vdisagg("status", check=False).stdout
    recovered(bed)


def test_e04_logins_are_lost_and_the_engines_are_not(bed: Bed) -> None:
    """All connections of sshd end, and it is away for a while: who serves goes on; commands say what is
    wrong, and work again once it is back."""
    n1, n2 = bed.nodes(2)
    bed.vdisagg("up", bed.topology([n1, n2], timeouts=SHORT))
    with bed.start("logs", "d0", "-f") as following:
        until(lambda: runs(n2, "logfile.py follow"))
        n2.sshds[0].stop()
        said = following.communicate(timeout=120)[1]
    assert following.returncode == 1, said
    assert "n2" in said
    bed.serves()
    logs = bed.vdisagg("logs", "d0", check=False)
    assert logs.returncode == 1
    assert "n2" in logs.stderr
    n2.sshds[0].start()
    assert "stub of vLLM" in bed.vdisagg("logs", "d0").stdout
    bed.is_healthy()
    recovered(bed)


def test_e04_a_link_that_is_silently_gone_ends_a_command_in_the_end(bed: Bed) -> None:
    """No packet comes back, and none says so: keepalives notice."""
    (n1,) = bed.nodes(1)
    bed.vdisagg("up", bed.topology([n1], timeouts=SHORT))
    with bed.start("logs", "p0", "-f") as following:
        until(lambda: runs(n1, "logfile.py follow"))
        n1.cut()
        said = following.communicate(timeout=120)[1]
    assert following.returncode == 1, said
    assert "n1" in said
    n1.restore()
    recovered(bed)


def test_ctrl_c_during_up_leaves_nothing_on_any_node(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], engine={"env": {"STUB_LOAD_S": 60}}, timeouts=SHORT)
    with bed.start("up", file) as up:
        until(lambda: runs(n1, "--headless") and runs(n2, "--headless"))
        send(up, 2)
        said = up.communicate(timeout=60)[1]
    assert up.returncode == 130, said
    bed.nothing_is_left()
