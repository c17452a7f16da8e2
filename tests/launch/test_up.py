"""Up and down with stand-ins for every process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes import living
from launch.conftest import free_ports
from vdisagg.cluster import record
from vdisagg.errors import ClusterBusy, Failure, LaunchFailed, PlanConflict, UsageError
from vdisagg.plan.model import Restart, Secret

if TYPE_CHECKING:
    from launch.conftest import Cluster

RUN_UP = Path(__file__).with_name("run_up.py")
DIES = "rm -f ready; for i in $(seq 30); do echo line $i; done; echo no memory; exit 7"
# Its tree is whole once it says so.
LOADS_FOR_EVER = "rm -f ready; sleep 1000 & echo loading; wait"


@contextmanager
def up_in_background(cluster: Cluster) -> Iterator[subprocess.Popen[str]]:
    """An up in a process of its own, to be killed or interrupted."""
    plan_file = cluster.directory / "plan-of-the-test.json"
    plan_file.write_bytes(msgspec.json.encode(cluster.plan))
    command = [sys.executable, str(RUN_UP), str(plan_file), str(cluster.directory)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def test_up_starts_everything_and_down_leaves_nothing(
    cluster: Cluster, is_alive: Callable[[int], bool]
) -> None:
    result = cluster.up()
    assert (result.name, result.already, result.adopted) == ("demo", False, ())
    recorded = record.read(cluster.directory)
    assert recorded is not None
    assert recorded.phase == "up"
    pids = cluster.pids()
    assert {name: s.pid for name, s in recorded.processes.items()} == {
        name: members[0] for name, members in pids.items()
    }
    done = cluster.down()
    assert done.ran
    assert {name: len(ended) for name, ended in done.ended.items()} == {
        "front-end": 1,
        "p0": 3,
        "d0": 3,
        "controller": 1,
    }
    assert not [pid for members in pids.values() for pid in members if is_alive(pid)]
    assert record.read(cluster.directory) is None
    assert all(Path(log).exists() for log in done.log_files.values())


def test_progress_ends_ready_for_every_process_and_warm_for_the_links(cluster: Cluster) -> None:
    cluster.up()
    ends = {name: stages[-1] for name, stages in cluster.talk.stages.items()}
    assert ends == {
        "controller": "ready",
        "p0": "ready",
        "d0": "ready",
        "front-end": "ready",
        "links": "1/1 warm",
    }
    assert cluster.talk.stages["p0"][0] == "launching"


def test_times_count_from_the_beginning_for_the_processes_as_for_the_links(
    cluster: Cluster,
) -> None:
    cluster.up()
    assert all(len(set(times)) == 1 for times in cluster.talk.times)
    assert cluster.talk.times == sorted(cluster.talk.times)


def test_down_of_nothing_says_so(cluster: Cluster) -> None:
    assert not cluster.down().ran


def test_d08_a_second_up_of_the_same_cluster_starts_nothing(cluster: Cluster) -> None:
    cluster.up()
    before = cluster.pids()
    cluster.talk.stages.clear()
    assert cluster.up().already
    assert cluster.pids() == before
    assert not cluster.talk.stages, "nothing is under way"


def test_d08_a_changed_file_is_a_named_difference_and_changes_nothing(cluster: Cluster) -> None:
    cluster.up()
    before = cluster.pids()
    cluster.topology = {"name": "demo", "decode": {"count": 2}}
    cluster.digest = "digest-2"
    with pytest.raises(Failure, match=r"decode\.count: 1 → 2\n.*vdisagg down --name demo"):
        cluster.up()
    assert cluster.pids() == before


def test_d08_of_two_ups_at_once_one_is_refused_by_name(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.engines["d0"] = LOADS_FOR_EVER
    with up_in_background(cluster) as first:
        wait_until(lambda: cluster.observe("front-end").state == "running")
        with pytest.raises(ClusterBusy, match=rf"`vdisagg up demo.yaml` \(pid {first.pid}\)"):
            cluster.up()
        with pytest.raises(ClusterBusy, match=f"pid {first.pid}"):
            cluster.down()
        assert first.poll() is None


def test_d08_an_up_after_the_cli_was_killed_keeps_what_lives(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.engines["d0"] = "rm -f ready; while [ ! -e go ]; do sleep 0.1; done; touch ready; wait"
    cluster.engines["d0"] += "; sleep 1000"
    with up_in_background(cluster) as first:
        wait_until(lambda: cluster.observe("front-end").state == "running")
        first.kill()
        first.wait()
    before = {name: cluster.observe(name).pid for name in ("controller", "p0", "d0", "front-end")}
    assert cluster.status().phase == "interrupted"
    os.kill(before["p0"] or 0, signal.SIGKILL)
    wait_until(lambda: not cluster.observe("p0").members)
    (Path(next(p.directory for p in cluster.plan.processes() if p.name == "d0")) / "go").touch()

    result = cluster.up()
    assert sorted(result.adopted) == ["controller", "d0", "front-end"]
    after = {name: cluster.observe(name).pid for name in before}
    assert {name for name in before if before[name] != after[name]} == {"p0"}
    assert f"(pid {first.pid}, " in cluster.talk.said[0]
    assert cluster.down().ran
    assert cluster.is_empty()


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.3, 0.5])
def test_d08_the_cli_killed_at_any_moment_leaves_nothing_that_down_does_not_find(
    cluster: Cluster, wait_until: Callable[..., None], delay_s: float
) -> None:
    with up_in_background(cluster) as first:
        wait_until(lambda: (cluster.directory / record.RECORD_FILE).exists())
        time.sleep(delay_s)  # the scenario itself: wherever it has got to by then
        first.kill()
        first.wait()
    cluster.down()
    assert cluster.is_empty()
    cluster.up()
    cluster.down()
    assert cluster.is_empty()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_undoes_the_launch_and_the_exit_code_says_which(
    cluster: Cluster, wait_until: Callable[..., None], number: signal.Signals
) -> None:
    cluster.engines["d0"] = LOADS_FOR_EVER
    with up_in_background(cluster) as first:
        wait_until(lambda: cluster.observe("front-end").state == "running")
        first.send_signal(number)
        out, err = first.communicate(timeout=30)
    assert first.returncode == 128 + number
    assert out == ""
    assert f"error: interrupted by {number.name}" in err
    assert cluster.is_empty()
    assert record.read(cluster.directory) is None


def test_a_signal_right_after_the_first_record_undoes_the_launch(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.engines["d0"] = LOADS_FOR_EVER
    with up_in_background(cluster) as first:
        wait_until(lambda: (cluster.directory / record.RECORD_FILE).exists())
        first.send_signal(signal.SIGINT)
        assert first.wait(30) == 130
    assert cluster.is_empty()
    assert record.read(cluster.directory) is None


def test_a_second_ctrl_c_does_not_break_the_undo_off(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    deaf = "rm -f ready; trap '' TERM; echo loading; while [ ! -e go ]; do sleep 0.1; done"
    cluster.engines["d0"] = deaf
    cluster.stop_s = 60.0
    with up_in_background(cluster) as first:
        wait_until(lambda: cluster.observe("front-end").state == "running")
        wait_until(lambda: is_loading(cluster, "d0"))
        first.send_signal(signal.SIGINT)
        assert first.stderr is not None
        for line in first.stderr:
            if line.startswith("ending what was started"):
                break
        first.send_signal(signal.SIGINT)
        assert any("still ending what was started" in line for line in first.stderr)
        (cluster.root / "demo" / "d0" / "go").touch()
        assert first.wait(30) == 130
    assert cluster.is_empty()
    assert record.read(cluster.directory) is None


def test_a_process_that_dies_is_shown_with_its_exit_code_and_last_lines(cluster: Cluster) -> None:
    cluster.engines["d0"] = DIES
    with pytest.raises(LaunchFailed) as caught:
        cluster.up()
    lines = str(caught.value).splitlines()
    assert lines[0] == "d0 died while starting: exit code 7"
    assert lines[1].endswith("demo/d0/log:")
    assert lines[2:-1] == [f"  | line {i}" for i in range(12, 31)] + ["  | no memory"]
    assert lines[-1].startswith("next: ")
    assert cluster.is_empty()
    assert record.read(cluster.directory) is None


def test_a_missing_executable_ends_the_launch_and_what_was_started(cluster: Cluster) -> None:
    cluster.extra["d0"] = {"argv": ("/nowhere/vllm", "serve")}
    with pytest.raises(LaunchFailed, match="d0: /nowhere/vllm: no such file"):
        cluster.up()
    assert cluster.is_empty()
    assert record.read(cluster.directory) is None


def test_a_link_that_fails_its_proof_ends_the_launch_at_once(cluster: Cluster) -> None:
    directory = Path(next(p for p in cluster.plan.processes() if p.name == "d0").directory)
    directory.mkdir(parents=True)
    (directory / "garbles").touch()
    with pytest.raises(LaunchFailed) as caught:
        cluster.up()
    lines = str(caught.value).splitlines()
    assert lines[0] == "the KV cache does not arrive intact, so answers would be wrong:"
    assert "  link p0→d0: token 1 of 8 is 5, where it computes 6 alone" in lines
    assert lines[-1].startswith("next: ")
    assert cluster.is_empty()


def test_the_deadline_names_who_is_not_ready(cluster: Cluster) -> None:
    cluster.engines["d0"] = LOADS_FOR_EVER
    cluster.launch_s = 1.0

    def clock() -> float:
        """It stands still until all the others are ready, however long that takes on this machine."""
        stages = {name: told[-1] for name, told in cluster.talk.stages.items()}
        others = {stages.get(name) for name in ("controller", "p0", "front-end")}
        said = is_loading(cluster, "d0")
        return 2.0 if others == {"ready"} and stages["d0"] == "connected" and said else 0.0

    with pytest.raises(
        LaunchFailed, match=r"(?s)not ready after 1 s \(timeouts\.launch_s\):\n  d0: connected"
    ) as caught:
        cluster.up(clock=clock)
    assert "  | loading" in str(caught.value)
    assert cluster.is_empty()


def test_d09_a_taken_port_is_named_with_its_purpose_and_owner(cluster: Cluster) -> None:
    port = cluster.ports[2]
    with socket.create_server(("127.0.0.1", port)):
        claim = rf"127.0.0.1:{port} \(p0 handshake\) is taken: pid {os.getpid()} \("
        with pytest.raises(PlanConflict, match=claim):
            cluster.up()
    assert cluster.is_empty()
    assert record.read(cluster.directory) is None


def test_a_missing_secret_is_named_before_anything_starts(cluster: Cluster, tmp_path: Path) -> None:
    cluster.extra["front-end"] = {"secrets": (Secret("VLLM_API_KEY", from_env="MY_KEY"),)}
    cluster.extra["p0"] = {"secrets": (Secret("HF_TOKEN", from_file=str(tmp_path / "token")),)}
    with pytest.raises(UsageError) as caught:
        cluster.up()
    assert "environment variable MY_KEY is not set" in str(caught.value)
    assert f"{tmp_path}/token (for HF_TOKEN): No such file" in str(caught.value)
    assert cluster.observe("controller").state == "never"


def test_secrets_reach_their_process_and_stand_in_no_file_and_no_command_line(
    cluster: Cluster, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    cluster.engines["p0"] = 'sleep 1000 & rm -f ready; [ "$HF_TOKEN" = t0k3n ] && : >ready; wait'
    cluster.extra["p0"] = {"secrets": (Secret("HF_TOKEN", from_env="MY_TOKEN"),)}
    cluster.up({"MY_TOKEN": "t0k3n"})
    pids = [pid for members in cluster.pids().values() for pid in members]
    texts = [*living.texts(tmp_path).values()]
    written = [text.replace("= t0k3n ]", "") for text in texts]  # the test's own script
    lines = [Path(f"/proc/{pid}/cmdline").read_text().replace("= t0k3n ]", "") for pid in pids]
    assert len(written) > 8
    assert not [text for text in written + lines if "t0k3n" in text]
    others = [pid for name, members in cluster.pids().items() if name != "p0" for pid in members]
    assert not [pid for pid in others if b"t0k3n" in Path(f"/proc/{pid}/environ").read_bytes()]


def test_d06_down_of_one_cluster_leaves_another_alone(
    make_cluster: Callable[[str], Cluster], wait_until: Callable[..., None]
) -> None:
    a, b = make_cluster("a"), make_cluster("b")
    a.up()
    b.up()
    others = b.pids()
    os.kill(a.observe("p0").pid or 0, signal.SIGKILL)
    wait_until(lambda: not a.observe("p0").members)
    a.down()
    assert a.is_empty()
    assert b.pids() == others
    assert b.status().healthy
    a.up()
    assert a.status().healthy


@pytest.mark.parametrize("name", ["controller", "p0", "front-end"])
@pytest.mark.parametrize("victim", ["leader", "guard", "both"])
def test_after_a_kill_of_anything_down_leaves_nothing_and_up_works_again(
    cluster: Cluster, is_alive: Callable[[int], bool], name: str, victim: str
) -> None:
    cluster.up()
    pids = [pid for members in cluster.pids().values() for pid in members]
    seen = cluster.observe(name)
    assert seen.pid is not None
    assert seen.guard_pid is not None
    for pid in {"leader": [seen.pid], "guard": [seen.guard_pid]}.get(
        victim, [seen.guard_pid, seen.pid]
    ):
        os.kill(pid, signal.SIGKILL)
    cluster.down()
    assert not [pid for pid in pids if is_alive(pid)]
    cluster.up()
    assert cluster.status().healthy


def is_loading(cluster: Cluster, name: str) -> bool:
    process = next(p for p in cluster.plan.processes() if p.name == name)
    return cluster.runner.tail(process, 1) == ["loading"]


NAMES = ("controller", "p0", "d0", "front-end")


def kill(cluster: Cluster, name: str, wait_until: Callable[..., None]) -> None:
    os.kill(cluster.observe(name).pid or 0, signal.SIGKILL)
    wait_until(lambda: not cluster.pids()[name])


@pytest.mark.parametrize("victims", [("d0",), ("controller",), ("p0", "front-end"), NAMES[1:]])
def test_an_up_over_casualties_starts_them_again_and_nothing_else(
    cluster: Cluster, wait_until: Callable[..., None], victims: tuple[str, ...]
) -> None:
    cluster.up()
    for name in victims:
        kill(cluster, name, wait_until)
    before = cluster.pids()
    result = cluster.up()
    assert (result.restarted, result.already, result.adopted) == (victims, False, ())
    after = cluster.pids()
    assert {name for name in NAMES if before[name] != after[name]} == set(victims)
    assert cluster.status().healthy
    (said,) = (text for text in cluster.talk.said if "is up, but not whole" in text)
    assert all(f"  {name}: signal 9; its log: " in said for name in victims)
    recorded = record.read(cluster.directory)
    assert recorded is not None
    assert {name: s.pid for name, s in recorded.processes.items()} == {
        name: members[0] for name, members in after.items()
    }
    assert cluster.down().ran
    assert cluster.is_empty()


def test_what_is_left_of_a_casualty_is_ended_before_it_is_started_again(
    cluster: Cluster, wait_until: Callable[..., None], is_alive: Callable[[int], bool]
) -> None:
    cluster.up()
    seen = cluster.observe("d0")
    for pid in (seen.guard_pid, seen.pid):
        os.kill(pid or 0, signal.SIGKILL)
    wait_until(lambda: cluster.observe("d0").state == "gone")
    assert [pid for pid in seen.members if is_alive(pid)]
    assert cluster.up().restarted == ("d0",)
    assert not [pid for pid in seen.members if is_alive(pid)]


def test_a_guard_that_gave_up_or_waits_is_replaced(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.restart = Restart(limit=2, backoff_s=1000.0)
    cluster.engines["d0"] = "[ -e broken ] && exit 1; " + cluster.engines["d0"]
    cluster.up()
    broken = cluster.root / "demo" / "d0" / "broken"
    broken.touch()
    os.kill(cluster.observe("d0").pid or 0, signal.SIGKILL)
    wait_until(lambda: cluster.observe("d0").state == "restarting" and cluster.observe("d0").code)
    broken.unlink()
    waiting = cluster.observe("d0").guard_pid
    assert cluster.up().restarted == ("d0",)
    seen = cluster.observe("d0")
    assert (seen.state, seen.generation) == ("running", 1)
    assert seen.guard_pid != waiting


def test_an_engine_that_hangs_is_started_again(cluster: Cluster) -> None:
    """It runs, and the controller has called it dead."""
    cluster.engines["d0"] = "rm -f dead; " + cluster.engines["d0"]
    cluster.up()
    (cluster.root / "demo" / "d0" / "dead").write_text(str(time.time() + 1000))
    before = cluster.pids()
    assert cluster.up().restarted == ("d0",)
    after = cluster.pids()
    assert {name for name in NAMES if before[name] != after[name]} == {"d0"}
    assert any("d0: runs, and is dead to the controller: it hangs" in t for t in cluster.talk.said)


def test_a_stopped_controller_is_started_again(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.up()
    os.kill(cluster.observe("controller").pid or 0, signal.SIGSTOP)
    wait_until(lambda: cluster.observe("controller").stopped)
    assert cluster.up().restarted == ("controller",)
    assert cluster.status().healthy


def test_what_runs_without_its_guard_is_left_running_and_said(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.up()
    guard = cluster.observe("p0").guard_pid
    os.kill(guard or 0, signal.SIGKILL)
    wait_until(lambda: not cluster.observe("p0").guard_alive)
    before = cluster.pids()
    assert cluster.up().already
    assert cluster.pids() == before
    assert any(f"p0 runs on, but its guard (pid {guard})" in text for text in cluster.talk.said)


def test_an_up_that_cannot_mend_takes_down_only_what_it_started(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.engines["d0"] = "[ -e broken ] && echo no memory && exit 7; " + cluster.engines["d0"]
    cluster.up()
    (cluster.root / "demo" / "d0" / "broken").touch()
    kill(cluster, "d0", wait_until)
    before = cluster.pids()
    with pytest.raises(LaunchFailed, match=r"(?s)d0 died while starting: exit code 7.*no memory"):
        cluster.up()
    assert cluster.pids() == before
    recorded = record.read(cluster.directory)
    assert recorded is not None
    assert recorded.phase == "up"
    assert cluster.status().phase == "up"
    (cluster.root / "demo" / "d0" / "broken").unlink()
    assert cluster.up().restarted == ("d0",)
    assert cluster.status().healthy


def test_an_up_of_a_cluster_that_is_not_ready_waits_for_it(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    """As while a guard has only just started an engine again."""
    cluster.up()
    ready = cluster.root / "demo" / "d0" / "ready"
    ready.unlink()
    before = cluster.pids()
    with up_in_background(cluster) as again:
        assert again.stderr is not None
        for line in again.stderr:
            if "is up, but not ready; waiting for it" in line:
                break
        assert again.poll() is None
        ready.touch()
        assert again.wait(30) == 0
    assert cluster.pids() == before


def test_a_mending_up_asks_only_for_secrets_of_what_it_starts(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.extra["front-end"] = {"secrets": (Secret("VLLM_API_KEY", from_env="MY_KEY"),)}
    cluster.up({"MY_KEY": "k3y"})
    kill(cluster, "d0", wait_until)
    assert cluster.up({}).restarted == ("d0",)
    kill(cluster, "front-end", wait_until)
    with pytest.raises(UsageError, match="MY_KEY"):
        cluster.up({})


def test_a_process_that_dies_while_starting_ends_the_launch_although_it_may_be_restarted(
    cluster: Cluster,
) -> None:
    cluster.restart = Restart()
    cluster.engines["d0"] = "rm -f ready; echo no memory; exit 7"
    with pytest.raises(LaunchFailed, match=r"(?s)d0 died while starting: exit code 7.*no memory"):
        cluster.up()
    assert cluster.is_empty()
    assert record.read(cluster.directory) is None


def test_the_last_words_of_a_process_that_was_restarted_while_starting_are_shown(
    cluster: Cluster,
) -> None:
    cluster.restart = Restart()
    again = "[ -e seen ] && echo another life && exec sleep 1000"
    cluster.engines["d0"] = f"rm -f ready; {again}; touch seen; echo no memory; exit 7"
    with pytest.raises(LaunchFailed) as caught:
        cluster.up()
    lines = str(caught.value).splitlines()
    assert lines[0] == "d0 died while starting: exit code 7"
    assert lines[1].endswith(("/d0/log.1:", "/d0/log:"))  # the latter until it lives again
    assert lines[2] == "  | no memory"
    assert cluster.is_empty()


def test_a_guard_brings_back_a_whole_cluster_piece_by_piece(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.restart = Restart()
    cluster.up()
    for name in NAMES:
        # else it counts as ready until its next life has taken the file away
        (cluster.root / "demo" / name / "ready").unlink(missing_ok=True)
        os.kill(cluster.observe(name).pid or 0, signal.SIGKILL)
    wait_until(lambda: all(cluster.observe(name).generation == 2 for name in NAMES))
    wait_until(lambda: cluster.status().healthy)
    assert cluster.up().already
    assert cluster.down().ran
    assert cluster.is_empty()


def test_a_controller_that_is_killed_again_and_again_is_back_each_time(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.restart = Restart()
    cluster.up()
    kills = cluster.restart.limit + 2  # an engine's guard would have given up
    for generation in range(1, kills + 1):
        os.kill(cluster.observe("controller").pid or 0, signal.SIGKILL)
        wait_until(lambda g=generation: started_again(cluster, "controller", g + 1))
    wait_until(lambda: cluster.status().healthy)


def started_again(cluster: Cluster, name: str, generation: int) -> bool:
    seen = cluster.observe(name)
    return seen.state == "running" and seen.generation == generation


def test_d08_a_cluster_whose_record_is_elsewhere_is_told_and_left_alone(
    cluster: Cluster, is_alive: Callable[[int], bool]
) -> None:
    cluster.up()
    living = cluster.pids()
    record.remove(cluster.directory)
    cluster.ports = free_ports(len(cluster.ports))  # else they would be told, and nothing tried
    with pytest.raises(Failure, match=r"(?s)runs already, and its record is not here") as caught:
        cluster.up()
    p0 = cluster.observe("p0")
    assert re.search(rf"here: p0, pid {p0.pid}, started \d+ s ago", str(caught.value))
    assert "next: `vdisagg down demo.yaml --find`" in str(caught.value)
    assert cluster.pids() == living
    assert record.read(cluster.directory) is None


def test_d08_of_two_ups_from_two_places_the_second_undoes_its_own_part_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    """Both have looked before either had started anything."""
    cluster.up()
    p0, d0 = cluster.observe("p0"), cluster.observe("d0")
    record.remove(cluster.directory)
    kill(cluster, "controller", wait_until)
    cluster.ports = free_ports(len(cluster.ports))
    monkeypatch.setattr("vdisagg.launch.up.refuse_foreign", lambda *_, **__: None)
    with pytest.raises(LaunchFailed, match=r"p0: already runs in .* as pid"):
        cluster.up()
    assert any(line == "ending what was started: controller" for line in cluster.talk.said)
    assert [cluster.observe(one).members for one in ("p0", "d0")] == [p0.members, d0.members]
    assert not cluster.observe("controller").members


def test_when_nothing_of_the_last_run_lives_up_starts_afresh(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    """As after a reboot."""
    cluster.up()
    for members in cluster.pids().values():
        for pid in reversed(members):
            with suppress(ProcessLookupError):  # a shell ends by itself once its child is dead
                os.kill(pid, signal.SIGKILL)
    wait_until(cluster.is_empty)
    assert not cluster.up().already
    assert "starting afresh" in cluster.talk.said[0]
    assert cluster.status().healthy


def test_what_an_up_did_not_start_it_leaves_running(
    cluster: Cluster, wait_until: Callable[..., None]
) -> None:
    cluster.engines["d0"] = LOADS_FOR_EVER
    with up_in_background(cluster) as first:
        wait_until(lambda: cluster.observe("front-end").state == "running")
        wait_until(lambda: is_loading(cluster, "d0"))
        first.kill()
        first.wait()
    os.kill(cluster.observe("p0").pid or 0, signal.SIGKILL)
    wait_until(lambda: not cluster.observe("p0").members)
    recorded = record.read(cluster.directory)
    assert recorded is not None
    before = cluster.pids()
    short = msgspec.structs.replace(recorded.plan.timeouts, launch_s=1.0)
    plan = msgspec.structs.replace(recorded.plan, timeouts=short)
    record.write(cluster.directory, msgspec.structs.replace(recorded, plan=plan))
    with pytest.raises(LaunchFailed, match="not ready"):
        cluster.up()
    assert {**cluster.pids(), "p0": ()} == {**before, "p0": ()}
    assert not cluster.observe("p0").members
    assert any("left running" in text and "d0 (pid" in text for text in cluster.talk.said)
    assert cluster.down().ran
    assert cluster.is_empty()
