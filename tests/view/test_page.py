"""The page of `bench --report`: what it says, of whatever was measured, and that it loads nothing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import plotly.graph_objects
import pytest

from vdisagg.bench.bootstrap import Interval
from vdisagg.bench.metrics import Row
from vdisagg.bench.outcome import Outcome
from vdisagg.bench.slo import Slo
from vdisagg.bench.sweep import ratios, sweep
from vdisagg.bench.verdict import Verdict
from vdisagg.errors import Failure
from vdisagg.view.page import inside, latency, page, ready, tables, traffic, write
from vdisagg.view.page.figure import Figure, sides
from view.runs import bad, good, result, whole

SLO = Slo(ttft_s=0.5, tpot_s=0.05)
PD = whole("P/D", ttft_s=0.06, tpot_s=0.02, slo=SLO)
COLOCATED = whole("colocated", ttft_s=0.09, tpot_s=0.04, slo=SLO)
BOTH = sides(Outcome([PD, COLOCATED]))


def figures(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


def without_plotly(text: str) -> str:
    from plotly.offline import get_plotlyjs

    assert text.count(get_plotlyjs()) == 1
    return text.replace(get_plotlyjs(), "")


def ys(figure: Figure | None, name: str) -> list[float]:
    assert figure
    return next(trace["y"] for trace in figure.data if trace["name"] == name)


def test_nothing_is_loaded_from_anywhere() -> None:
    text = without_plotly(page(Outcome([PD, COLOCATED])))
    assert not re.search(r"\b(src|href|srcset|data|action)\s*=", text)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|\bimport\b\s*\(", text)
    # the only address is the server's, as text
    assert set(re.findall(r"https?://[^<\s\"]+", text)) == {"http://127.0.0.1:8000"}
    assert "default-src 'none'" in text


def test_every_figure_is_one_that_plotly_accepts() -> None:
    many = [whole(f"{rate} requests/s", ttft_s=0.1 * rate, tpot_s=0.02) for rate in (1, 2, 4)]
    for runs in ([PD, COLOCATED], many, [result("", [bad(0), bad(1)])]):
        for figure in figures(page(Outcome(runs))).values():
            # colours are names of CSS variables until the page's script puts them in
            plain = re.sub(r'"--[a-z0-9-]+"', '"#000000"', json.dumps(figure))
            plotly.graph_objects.Figure(json.loads(plain))  # raises on a name that it doesn't know


def test_colours_of_figures_are_in_the_style_sheet_for_light_and_dark() -> None:
    many = [whole(f"run {i}", ttft_s=0.1, tpot_s=0.02) for i in range(8)]
    text = page(Outcome(many))
    drawn = json.dumps([figures(text), figures(page(Outcome([PD, COLOCATED])))])
    used = set(re.findall(r'"(--[a-z0-9-]+)"', drawn))
    assert {"--first", "--second", "--shade-0", "--shade-5", "--ink"} <= used
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style
    for name in used:
        assert style[1].count(f"{name}:") == 2, name


def test_two_runs_stand_in_one_figure_in_their_own_colours() -> None:
    figure = latency.distribution(BOTH, "ttft")
    assert figure
    assert [(t["name"], t["line"]["color"]) for t in figure.data] == [
        ("P/D", "--first"),
        ("colocated", "--second"),
    ]
    # 18 requests in 60 ms, one in 600
    assert figure.data[0]["x"] == [60.0] * 18 + [600.0]
    assert figure.data[0]["y"][-2:] == [94.737, 100.0]


def test_a_distribution_is_logarithmic_where_it_spans_decades_only() -> None:
    wide = [good(0, ttft_s=0.01, tpot_s=0.02), good(1, ttft_s=0.25, tpot_s=0.02)]
    near = [good(0, ttft_s=0.01, tpot_s=0.02), good(1, ttft_s=0.15, tpot_s=0.02)]
    for samples, scale in ((wide, "log"), (near, None)):
        figure = latency.distribution(sides(Outcome([result("", samples)])), "ttft")
        assert figure
        assert figure.layout["xaxis"].get("type") == scale


def test_the_slo_is_a_line_in_the_figures_of_its_metrics() -> None:
    for metric, bound in (("ttft", 500.0), ("tpot", 50.0)):
        across, along = latency.distribution(BOTH, metric), latency.over_time(BOTH, metric)
        assert across
        assert along
        assert across.layout["shapes"][0]["x0"] == bound
        assert along.layout["shapes"][0]["y0"] == bound
        assert f"the SLO, {bound:g} ms" in across.note
    unbound = latency.distribution(BOTH, "e2e")
    assert unbound
    assert "shapes" not in unbound.layout


def test_a_request_that_failed_is_in_no_latency_and_in_the_arrivals() -> None:
    # 20 requests, one every 0.5 s until 9.501 s: 4 parts of 2.375 s with 5 each; the last one failed
    figure = traffic.arrivals(sides(Outcome([PD])))
    assert ys(figure, "P/D, sent") == pytest.approx([5 / 2.37525] * 5, rel=1e-4)
    assert ys(figure, "P/D, failed") == pytest.approx([0, 0, 0, 1 / 2.37525, 1 / 2.37525], rel=1e-4)
    assert len(ys(latency.over_time(sides(Outcome([PD])), "ttft"), "P/D")) == 19


def test_one_schedule_is_drawn_once_for_both_runs() -> None:
    figure = traffic.arrivals(BOTH)
    assert figure
    assert [trace["name"] for trace in figure.data] == [
        "P/D, sent",
        "P/D, failed",
        "colocated, sent",
        "colocated, failed",
        "asked",
    ]


def test_lateness_is_in_milliseconds_by_the_schedule() -> None:
    figure = traffic.lateness(sides(Outcome([PD])))
    assert figure
    assert figure.data[0]["x"][:3] == [0.0, 0.5, 1.0]
    assert figure.data[0]["y"] == pytest.approx([1.0] * 20)


def test_a_load_sent_all_at_once_has_no_lateness() -> None:
    samples = [msgspec.structs.replace(sample, due_s=0.0) for sample in PD.samples]
    assert traffic.lateness(sides(Outcome([result("", samples)]))) is None


def test_phases_are_stacked_in_a_requests_order_on_one_scale() -> None:
    ours, theirs = inside.phases(BOTH, "phases")
    assert ours
    assert theirs
    assert [trace["name"] for trace in ours.data] == ["queue", "prefill", "transfer", "decode"]
    assert [trace["y"][0] for trace in ours.data] == [10.0, 30.0, 20.0, 200.0]
    # the highest bar of both is 10 + 30 + 20 + 400 ms
    assert (
        ours.layout["yaxis"]["range"] == theirs.layout["yaxis"]["range"] == [0, pytest.approx(483)]
    )


def test_each_engine_has_a_row_prefill_first() -> None:
    run = result(
        "", [good(0, ttft_s=0.1, tpot_s=0.02)], engines=("d0 decode", "d1 decode", "p0 prefill")
    )
    figure = inside.loads(sides(Outcome([run]))[0], "loads")
    assert figure
    assert [note["text"] for note in figure.layout["annotations"]] == [
        "<b>p0</b> prefill",
        "<b>d0</b> decode",
        "<b>d1</b> decode",
    ]
    assert len(figure.data) == 9
    assert ys(figure, "running")[:4] == [0.0, 1.0, 2.0, 0.0]
    assert ys(figure, "waiting") == [0.0] * 10
    assert ys(figure, "KV cache in use") == [25.0] * 10


def test_what_no_server_told_is_not_on_the_page() -> None:
    text = page(Outcome([result("", [good(i, ttft_s=0.1, tpot_s=0.02) for i in range(5)])]))
    assert "Inside the server" not in without_plotly(text)
    assert set(figures(text)) == {
        "cdf-ttft",
        "cdf-tpot",
        "cdf-e2e",
        "time-ttft",
        "time-tpot",
        "arrivals",
        "late",
    }


def test_failures_alone_make_a_page_too() -> None:
    text = page(Outcome([result("", [bad(0, "no room"), bad(1, "another")])]))
    assert set(figures(text)) == {"arrivals", "late"}
    assert "No request succeeded, so there are no latencies." in text
    assert "<td>2</td><td>no room</td>" in text


def test_a_single_request_makes_a_page() -> None:
    assert set(figures(page(Outcome([result("", [good(0, ttft_s=0.1, tpot_s=0.02)])])))) == {
        "cdf-ttft",
        "cdf-tpot",
        "cdf-e2e",
        "time-ttft",
        "time-tpot",
    }


def test_all_text_is_escaped_in_the_page_and_in_its_figures() -> None:
    evil = "</script><script>alert(1)</script><!--<b>"
    text = without_plotly(
        page(Outcome([whole(evil, ttft_s=0.1, tpot_s=0.02), result(evil, [bad(0, evil)])]))
    )
    assert "alert(1)</script>" not in text
    assert "<!--" not in text
    assert text.count("</script>") == 3  # the data, plotly's (taken out but for its tags), ours
    names = {trace["name"] for figure in figures(text).values() for trace in figure["data"]}
    assert not [name for name in names if "<" in name]


def test_ten_thousand_requests_make_no_large_page() -> None:
    run = result(
        "",
        [good(i, ttft_s=0.01 * (1 + i % 97), tpot_s=0.001 * (1 + i % 89)) for i in range(10_000)],
    )
    text = without_plotly(page(Outcome([run])))
    assert len(text) < 300_000
    assert "1 of 10 of 10,000 requests, and the 50 slowest" in text


def test_percentiles_stand_in_milliseconds() -> None:
    # TTFT: 18 of 60 ms, one of 600 ms; the mean is 1680 / 19
    row = '<th scope="row">TTFT</th><td>88.4</td><td>60</td><td>60</td><td>60</td>'
    assert row in tables.latencies(sides(Outcome([whole("", ttft_s=0.06, tpot_s=0.02)])))


def test_a_setting_that_is_the_same_in_all_runs_stands_once() -> None:
    assert '<th scope="row">tokens in</th><td colspan="2">128</td>' in tables.settings(BOTH)
    assert "2023-11-14 22:13 UTC" in tables.settings(BOTH)


def test_the_verdict_is_said_once_and_its_doubts_are_a_list() -> None:
    doubts = ["P/D: 1 of 20 requests failed (HTTP 500)"]
    said = "Not to be trusted (P/D: 1 of 20 requests failed (HTTP 500)): P/D pays here: so it is."
    text = page(Outcome([PD, COLOCATED], Verdict("pays", said, doubts, "P/D", "colocated", [])))
    assert "<p>P/D pays here: so it is.</p>" in text
    assert "<ul><li>P/D: 1 of 20 requests failed (HTTP 500)</li></ul>" in text


def test_where_the_intervals_are_shown_it_is_said_which_side_is_better() -> None:
    rows = [
        # 60 ms against 90: shown to be shorter
        Row("TTFT p99", "s", 0.06, 0.09, Interval(0.5, 0.8), Interval(-0.04, -0.02)),
        Row("requests/s", "requests/s", 2.0, 2.5, Interval(0.7, 1.1), Interval(-0.7, 0.2)),
        Row("goodput", "share", 0.5, 0.0, None, Interval(0.4, 0.6)),
        Row("ITL p99", "s", None, 0.1, None, None),
        Row("requests/s", "requests/s", 0.0, 2.0, None, Interval(-2.5, -1.5)),
    ]
    text = tables.comparison(Verdict("pays", "so it is", [], "P/D", "colocated", rows))
    for cells in (
        ("60", "90", "0.67", "0.50 to 0.80", "P/D"),
        ("2", "2.5", "0.80", "0.70 to 1.10", "no difference shown"),
        ("50.0 %", "0.0 %", "–", "+40.0 to +60.0 points", "P/D"),
        ("–", "100", "–", "–", "not measured"),
        ("0", "2", "0.00", "-2.50 to -1.50 requests/s", "colocated"),
    ):
        assert "".join(f"<td>{cell}</td>" for cell in cells) in text


SWEPT = [
    whole(f"{side} {rate}", ttft_s=ttft * rate, tpot_s=0.02, slo=SLO, rate=rate)
    for side, ttft in (("P/D", 0.03), ("colocated", 0.06))
    for rate in (1, 2, 10)
]


def test_a_sweep_of_two_sides_is_drawn_by_rate_in_the_sides_colours() -> None:
    both = [sweep(SWEPT[:3], slo=SLO, label="P/D"), sweep(SWEPT[3:], slo=SLO, label="colocated")]
    text = page(Outcome(SWEPT, sweep=both))
    assert all(each.sentence.replace("<", "&lt;") in text for each in both)
    drawn = figures(text)["sweep-goodput"]
    assert [(t["name"], t["line"]["color"], t["x"], t["y"]) for t in drawn["data"]] == [
        # 20 requests: one always fails, one takes ten times as long as the others
        ("P/D", "--first", [1, 2, 10], [95, 90, 90]),
        ("colocated", "--second", [1, 2, 10], [90, 90, 0]),
    ]
    assert drawn["layout"]["shapes"][0]["y0"] == 90
    assert figures(text)["sweep-tpot"]["data"][0]["y"] == [20, 20, 20]


def test_of_a_sweep_of_two_sides_rates_are_shades_and_sides_are_dashes() -> None:
    both = [sweep(SWEPT[:3], slo=SLO, label="P/D"), sweep(SWEPT[3:], slo=SLO, label="colocated")]
    looks = [(side.color, side.dash) for side in sides(Outcome(SWEPT, sweep=both))]
    shades = ["--shade-0", "--shade-2", "--shade-5"]
    assert looks == [(s, "solid") for s in shades] + [(s, "dash") for s in shades]


def test_ratios_are_bars_of_what_the_best_was_chosen_by() -> None:
    runs = [whole(label, ttft_s=0.1, tpot_s=tpot) for label, tpot in (("1:3", 0.02), ("3:1", 0.04))]
    found = ratios(runs, slo=None)
    text = page(Outcome(runs, ratios=found))
    assert found.sentence in text
    drawn = figures(text)["ratios"]
    # 18 requests of 100 ms and ten tokens after it, one of 1 s: 2.8 s / 19 more
    assert drawn["data"][0]["x"] == ["1:3", "3:1"]
    assert drawn["data"][0]["y"] == [347.37, 547.37]


def test_versions_are_a_table() -> None:
    text = page(Outcome([PD], versions={"vllm": "0.32.0+cpu"}))
    assert '<th scope="row">vllm</th><td>0.32.0+cpu</td>' in text


def test_figures_and_tables_have_names() -> None:
    text = without_plotly(page(Outcome([PD, COLOCATED])))
    assert text.count("<figure") == text.count('role="img"') == len(figures(text))
    assert text.count("<table") == text.count("<caption") == text.count("<thead")
    assert not re.search(r'aria-label=""|<h3></h3>|<caption></caption>', text)


def test_the_page_says_what_makes_it_large() -> None:
    assert re.search(r"Most of this file is plotly.js \(\d\.\d MB\)", page(Outcome([PD])))


def test_a_page_is_written_whole_for_all_to_read(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("old")
    write(Outcome([PD]), path)
    assert path.read_text() == page(Outcome([PD]))
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_that_cannot_be_written_leaves_nothing_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "r.html").mkdir()
    with pytest.raises(Failure, match=re.escape(str(tmp_path / "r.html"))):
        write(Outcome([PD]), tmp_path / "r.html")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    with pytest.raises(Failure, match=r"nowhere/r\.html: can't be written"):
        write(Outcome([PD]), tmp_path / "nowhere" / "r.html")


def test_before_a_bench_it_is_known_whether_its_page_can_be_written(tmp_path: Path) -> None:
    ready(tmp_path / "r.html")
    for path in (tmp_path, tmp_path / "nowhere" / "r.html"):
        with pytest.raises(Failure, match=re.escape(f"{path}: can't be written: ")):
            ready(path)


def test_without_plotly_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    attempts: tuple[Callable[[], None], ...] = (
        lambda: ready(tmp_path / "r.html"),
        lambda: write(Outcome([PD]), tmp_path / "r.html"),
    )
    for attempt in attempts:
        with pytest.raises(Failure, match=r"not installed; next: pip install 'vdisagg\[report\]'"):
            attempt()
    assert not list(tmp_path.iterdir())
