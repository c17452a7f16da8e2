import json
from pathlib import Path
from random import Random

import msgspec
import pytest

from fakes.bench_runs import SETTINGS, always, answered, steady
from vdisagg.bench.outcome import Outcome, load, save
from vdisagg.bench.samples import Phases
from vdisagg.bench.slo import Slo
from vdisagg.bench.sweep import ratios, sweep
from vdisagg.bench.verdict import verdict
from vdisagg.errors import Failure, UsageError

SLO = Slo(ttft_s=0.5)


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    runs = [
        steady("P/D", always(0.2), always(0.1), count=20, slo=SLO, input_len="5-15"),
        steady("colocated", always(0.3), always(0.1), count=20, slo=SLO, output_len=None),
    ]
    sample = msgspec.structs.replace(
        runs[0].samples[0], phases=Phases("p0", "d0", 0.1, 0.2, 0.3, 0.4)
    )
    runs[0].samples[0] = sample
    outcome = Outcome(
        runs=runs,
        verdict=verdict(*runs, slo=SLO, rng=Random(1)),
        sweep=[sweep(runs, slo=SLO)],
        ratios=ratios(runs, slo=SLO),
        versions={"vdisagg": "0.1.0"},
    )
    path = tmp_path / "run.json"
    save(outcome, path)
    assert load(path) == outcome
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_of_one_run_as_it_used_to_be_still_loads(tmp_path: Path) -> None:
    sample: dict[str, object] = {
        "number": 0,
        "due_s": 0,
        "sent_s": 0,
        "first_s": 0.5,
        "last_s": 0.9,
    }
    sample |= {"output_tokens": 5, "gaps_s": [0.1] * 4}
    spread = {"count": 1, "mean": 0.5, "median": 0.5, "p90": 0.5, "p99": 0.5, "max": 0.5}
    path = tmp_path / "old.json"
    old = {"report": {"settings": SETTINGS, "held_s": 1.5, "ttft": spread}, "samples": [sample]}
    path.write_text(json.dumps(old))
    (run,) = load(path).runs
    assert run.report.held_s == 1.5
    assert run.report.ttft is not None
    assert (run.report.ttft.p75, run.report.output_tokens) == (0.5, 5)
    assert run.report.settings.endpoint == "completions"


@pytest.mark.parametrize(
    "text",
    ["", "hello", "[]", "{}", '{"runs": []}', '{"report": {}}', '{"runs": [{"label": 3}]}', "\xff"],
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(
        UsageError, match=r"x\.json: not a file of `vdisagg bench --save` \(.+\); next: "
    ):
        load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.json: can't be read: No such file"):
        load(tmp_path / "x.json")


def test_a_place_that_takes_no_file_is_a_failure_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = Outcome(runs=[steady("", always(0.2), always(0.1), count=2)])
    with pytest.raises(Failure, match="can't be written: No such file"):
        save(outcome, tmp_path / "missing" / "run.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(Failure, match="taken: can't be written"):
        save(outcome, tmp_path / "taken")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


def test_samples_that_were_read_are_those_that_were_written(tmp_path: Path) -> None:
    samples = [answered(i, 0.1 * i, 0.01) for i in range(3)]
    path = tmp_path / "run.json"
    save(Outcome(runs=[steady("a", lambda i: 0.1 * i, always(0.01), count=3)]), path)
    assert load(path).runs[0].samples == samples
