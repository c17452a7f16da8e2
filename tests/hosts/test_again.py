"""A launcher that is killed, started twice, or has lost its record: never two copies, never a leftover."""

from __future__ import annotations

import json
import signal

from fakes import living
from hosts.bed import UP_S, Bed, send, until
from hosts.network import Host

LOADING = {"env": {"STUB_LOAD_S": 6}}


def engines(host: Host) -> list[int]:
    """Pids of the engines there."""
    return [
        pid
        for pid, words in host.processes().items()
        if "--headless" in words and "guard.py" not in words
    ]


def test_d08_an_up_that_was_killed_is_gone_on_from_and_nothing_runs_twice(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    file = bed.topology([n1, n2], engine=LOADING)
    with bed.start("up", file) as first:
        until(lambda: engines(n1) and engines(n2))
        send(first, signal.SIGKILL)
        first.communicate(timeout=30)
    before = engines(n1) + engines(n2)
    up = bed.vdisagg("up", file)
    assert "an earlier `vdisagg up`" in up.stderr
    bed.serves()
    assert engines(n1) + engines(n2) == before
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_d08_a_changed_file_is_a_named_difference(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    bed.vdisagg("up", bed.topology([n1, n2]))
    changed = bed.topology([n1, n2], engine={"args": {"max_num_seqs": 7}})
    up = bed.vdisagg("up", changed, check=False)
    assert up.returncode == 1
    assert "engine.args.max_num_seqs: (not set) → 7" in up.stderr
    assert len(engines(n1)) == 1
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_d08_of_two_ups_at_once_one_is_told_of_the_other(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    loaded = bed.network.directory / "loaded"
    file = bed.topology([n1, n2], engine={"env": {"STUB_LOAD_UNTIL": str(loaded)}})
    with bed.start("up", file) as first:
        until(lambda: engines(n1))
        second = bed.vdisagg("up", file, check=False)
        loaded.touch()
        assert second.returncode == 1
        assert "is busy: `vdisagg up" in second.stderr
        said = first.communicate(timeout=UP_S)[1]
    assert first.returncode == 0, said
    assert [len(engines(host)) for host in (n1, n2)] == [1, 1]
    bed.vdisagg("down")
    bed.nothing_is_left()


def test_a_run_whose_record_is_lost_is_found_on_its_nodes(bed: Bed) -> None:
    n1, n2 = bed.nodes(2)
    other = bed.topology([n1], name="other", front_end={"port": 8001}, ports={"first": 23000})
    file = bed.topology([n1, n2])
    bed.vdisagg("up", other)
    bed.vdisagg("up", file)
    living.remove(bed.here.home / ".local" / "state" / "vdisagg" / "net")
    assert bed.vdisagg("down", file).stdout.startswith("cluster net"), "it finds nothing to end"
    assert engines(n2)
    down = json.loads(bed.vdisagg("down", "--find", file, "--json").stdout)
    assert down["name"] == "net"
    bed.runs(n2=0)
    assert len(engines(n1)) == 2, "another cluster's are left alone"
    bed.serves(url="http://127.0.0.1:8001")
    bed.vdisagg("down", "--name", "other")
    bed.nothing_is_left()
