"""The page of `bench --report` in a real browser without a network: everything is drawn, nothing complains."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from vdisagg.bench.outcome import Outcome
from vdisagg.bench.slo import Slo
from vdisagg.bench.sweep import ratios, sweep
from vdisagg.bench.verdict import Verdict
from vdisagg.view.page import write
from view.browser import Browser
from view.runs import bad, result, whole

PROGRAM = shutil.which("chromium")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no chromium on the PATH")

SLO = Slo(ttft_s=0.5)
PD = whole("P/D", ttft_s=0.06, tpot_s=0.02, slo=SLO)
COLOCATED = whole("colocated", ttft_s=0.09, tpot_s=0.04, slo=SLO)

DRAWN = """Object.fromEntries([...document.querySelectorAll(".plot")].map((place) => [
  place.id, place.querySelectorAll(".scatterlayer .trace, .barlayer .trace").length]))"""
"""How many traces each figure has as SVG."""

COLOR = 'getComputedStyle(document.querySelector("#cdf-ttft .js-line")).stroke'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM
    found = Browser(PROGRAM)
    yield found
    found.close()


def assert_alone_and_content(browser: Browser, path: Path) -> None:
    assert browser.requested() == [path.as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("document.querySelectorAll('[data-failed]').length") == 0


def test_two_runs_are_drawn_light_dark_and_on_paper(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "two.html"
    verdict = Verdict("pays", "P/D pays here: so <it> is.", [], "P/D", "colocated", [])
    write(Outcome([PD, COLOCATED], verdict), path)
    browser.open(path)
    assert browser.evaluate(DRAWN) == {
        "cdf-ttft": 2,
        "cdf-tpot": 2,
        "cdf-e2e": 2,
        "time-ttft": 4,  # points and medians of both
        "time-tpot": 4,
        "arrivals": 5,  # one schedule; sent and failed of both
        "late": 2,
        "phases-0": 4,
        "loads-0": 6,  # three lines for each of two engines
        "phases-1": 4,
        "loads-1": 6,
    }
    assert (
        browser.evaluate('document.querySelector(".verdict p").innerText')
        == "P/D pays here: so <it> is."
    )
    assert browser.evaluate('document.querySelectorAll("#cdf-ttft .legendtext").length') == 2
    assert browser.evaluate('document.querySelectorAll("#cdf-ttft .shapelayer path").length') == 1
    assert browser.evaluate(COLOR) == "rgb(10, 102, 194)"
    # no wider than the window
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")

    browser.prefer("dark")
    browser.wait_for(COLOR, "rgb(90, 169, 255)")
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate(COLOR) == "rgb(10, 102, 194)"
    assert (
        browser.evaluate(
            'document.getElementById("cdf-ttft").querySelector(".main-svg").clientWidth'
        )
        == 690
    )
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(COLOR) == "rgb(90, 169, 255)"
    assert_alone_and_content(browser, path)


def test_of_many_runs_what_is_folded_is_drawn_when_it_opens(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "many.html"
    runs = [
        whole(f"{n} requests/s", ttft_s=0.06 * n, tpot_s=0.02, slo=SLO, rate=n) for n in (1, 2, 4)
    ]
    swept, divided = sweep(runs, slo=SLO, label="P/D"), ratios(runs, slo=SLO)
    write(Outcome(runs, sweep=[swept], ratios=divided), path)
    browser.open(path)
    drawn = browser.evaluate(DRAWN)
    assert drawn["cdf-ttft"] == 3
    assert drawn["time-ttft"] == 3  # medians alone
    assert [drawn[f"sweep-{name}"] for name in ("goodput", "ttft", "tpot", "e2e")] == [1] * 4
    assert browser.evaluate('document.querySelectorAll("#ratios .bars .point").length') == 3
    assert drawn["phases-2"] == 0
    browser.evaluate(
        """new Promise((done) => {
          const part = document.querySelectorAll("details")[2];
          part.addEventListener("toggle", () => done(0));
          part.open = true;
        })"""
    )
    assert browser.evaluate(DRAWN)["phases-2"] == 4
    assert_alone_and_content(browser, path)


def test_failures_alone_are_drawn(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "failed.html"
    write(Outcome([result("", [bad(0, "<script>alert(1)</script>"), bad(1)])]), path)
    browser.open(path)
    assert browser.evaluate(DRAWN) == {"arrivals": 3, "late": 1}
    assert "<script>alert(1)</script>" in browser.evaluate("document.body.innerText")
    assert_alone_and_content(browser, path)
