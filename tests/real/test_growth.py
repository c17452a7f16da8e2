"""Growth is found where there is any, of processes that lived long enough to tell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from real.growth import MAY_GROW_FILES, Census, Life, Sample, grown, problems


def life(
    begin: int, end: int, mib: Callable[[int], float], files: Callable[[int], int] = lambda at: 9
) -> Life:
    """Seen every second."""
    return Life("p0 core", [Sample(at, mib(at), files(at)) for at in range(begin, end)])


def test_what_only_fills_caches_at_first_has_not_grown() -> None:
    (growth,) = grown([life(0, 90, lambda at: 100 + 10 * min(at, 30))], 0, 90)
    assert (growth.mib, growth.files, growth.problem) == ((400, 400), (9, 9), "")


def test_a_slow_leak_of_memory_is_found() -> None:
    (growth,) = grown([life(0, 90, lambda at: 100 + at / 3)], 0, 90)
    assert growth.problem == "p0 core 114.8→124.8 MiB, 9→9 open: more than 8.6 MiB"


def test_a_leak_of_open_files_is_found() -> None:
    (growth,) = grown([life(0, 90, lambda at: 100, lambda at: at // 3)], 0, 90)
    assert (
        growth.problem
        == f"p0 core 100.0→100.0 MiB, 14.5→24.5 open: more than {MAY_GROW_FILES} open files"
    )


def test_one_large_request_is_no_growth() -> None:
    (growth,) = grown([life(0, 90, lambda at: 900 if at in (70, 71) else 100)], 0, 90)
    assert not growth.problem


def test_only_who_lived_through_the_last_two_thirds_is_compared() -> None:
    late, ended, there = (life(b, e, lambda at: 100) for b, e in ((31, 90), (0, 80), (30, 90)))
    assert not grown([late, ended], 0, 90)
    assert len(grown([there], 0, 90)) == 1
    assert problems(grown([late, there], 0, 90), {"p0 core"}) == ""
    assert problems(grown([late], 0, 90), {"p0 core"}) == "p0 core was not compared"


def test_a_census_sees_the_guard_and_all_below_it_by_name() -> None:
    inner = "import sys; sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}, 'VLLM::EngineCore'])"
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        census = Census({"p0": os.getpid()})
        while "p0 core" not in (open_files := census.look(1.0)):
            assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
    assert open_files.keys() >= {"p0 guard", "p0", "p0 core"}
    assert open_files["p0 core"] >= 3
    (core,) = [one for one in census.lives if one.name == "p0 core"]
    assert core.samples[-1].mib > 1
