"""The page of `vdisagg bench --report out.html`: one file that needs no network, drawn by plotly.js."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from vdisagg.bench import whole
from vdisagg.bench.verdict import with_doubts
from vdisagg.errors import Failure
from vdisagg.view.page import inside, latency, rates, tables, traffic
from vdisagg.view.page.figure import Figure, Side, sides
from vdisagg.view.page.html import element, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vdisagg.bench.outcome import Outcome
    from vdisagg.bench.sweep import Ratios, Sweep
    from vdisagg.bench.verdict import Verdict

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""The browser itself refuses to load anything from anywhere."""


def ready(path: Path) -> None:
    """Before a bench: whether its page can be made and written there. Raises Failure where it can't."""
    _plotly()
    whole.ready(path)


def write(outcome: Outcome, path: Path) -> None:
    """The page as a file: whole, or not at all. Raises Failure naming the path."""
    whole.write_whole(path, page(outcome).encode())


def page(outcome: Outcome) -> str:
    """The page as text. Raises Failure where plotly is not installed."""
    script = _plotly()
    shown = sides(outcome)
    parts = [_head(outcome, shown), *([_verdict(outcome.verdict)] if outcome.verdict else [])]
    parts += [_sweep(outcome.sweep)] if outcome.sweep else []
    parts += [_ratios(outcome.ratios)] if outcome.ratios else []
    parts += [_latencies(shown), _arrivals(shown), _inside(shown), _asked(outcome, shown)]
    figures = [figure for _, drawn in parts for figure in drawn]
    data = json.dumps(
        {figure.key: {"data": figure.data, "layout": figure.layout} for figure in figures},
        separators=(",", ":"),
    )
    content = "".join(html for html, _ in parts)
    return _document(_title(outcome), content, data, script)


Part = tuple[str, list[Figure]]


def _document(title: str, content: str, data: str, script: str) -> str:
    # In a script element only "</" could end it, and "<!--" could hide its end.
    data = data.replace("<", "\\u003c")
    footer = (
        f"Most of this file is plotly.js ({_megabytes(len(script))}), which draws the figures and is "
        f"here once, so that the page needs no network. The figures' points are {_megabytes(len(data))}."
    )
    head = (
        element("title", words(title))
        + '<meta charset="utf-8">'
        + f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        + '<meta name="viewport" content="width=device-width, initial-scale=1">'
        + element("style", _file("page.css"))
    )
    body = (
        element("main", content, element("footer", element("p", words(footer))))
        + element("script", data, type="application/json", id="figures")
        + element("script", script)
        + element("script", _file("page.js"))
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _title(outcome: Outcome) -> str:
    first = outcome.runs[0].report.settings
    return f"vdisagg bench: {first.model}, {tables.instant(first.started)}"


def _head(outcome: Outcome, shown: Sequence[Side]) -> Part:
    if outcome.verdict:
        what = f"{outcome.verdict.a} against {outcome.verdict.b}"
    elif outcome.ratios:
        what = "ratios of prefill to decode"
    elif outcome.sweep:
        what = "a sweep of rates"
    else:
        what = ", ".join(side.name for side in shown if side.name)
    first = outcome.runs[0].report.settings
    heading = f"{first.model}: {what}" if what else first.model
    loads = {tables.asked(run.report.settings) for run in outcome.runs}
    load = loads.pop() if len(loads) == 1 else f"{len(shown)} runs under different loads"
    began = f"{load}; began {tables.instant(first.started)}"
    html = element("h1", words(heading)) + element("p", words(began), class_="quiet")
    if outcome.cut_short:
        html += element("p", words(f"Cut short: {outcome.cut_short}."), class_="said")
    return html, []


def _sweep(sweeps: Sequence[Sweep]) -> Part:
    figures = rates.sweep_figures(sweeps)
    html = element("h2", "Rates") + "".join(_sentence(sweep.sentence) for sweep in sweeps)
    html += "".join(map(rates.sweep_table, sweeps)) + _figures(figures)
    return html, figures


def _ratios(ratios: Ratios) -> Part:
    figures = _some([rates.ratios_figure(ratios)])
    html = element("h2", "Prefill to decode") + _sentence(ratios.sentence)
    return html + rates.ratios_table(ratios) + _figures(figures), figures


def _sentence(said: str) -> str:
    return element("p", words(said), class_="said")


def _verdict(verdict: Verdict) -> Part:
    said = verdict.sentence
    doubts = ""
    if verdict.doubts:
        # The sentence has them within; on a page there is room for a list.
        said = said.removeprefix(with_doubts("", verdict.doubts))
        items = "".join(element("li", words(doubt)) for doubt in verdict.doubts)
        doubts = element("h3", "Not to be trusted:") + element("ul", items)
    kind = verdict.answer.replace(" ", "-")
    html = element("section", doubts, element("p", words(said)), class_=f"verdict {kind}")
    return html + tables.comparison(verdict), []


def _latencies(shown: Sequence[Side]) -> Part:
    spread = _some(latency.distribution(shown, metric) for metric in latency.NAMES)
    over_time = _some(latency.over_time(shown, metric) for metric in ("ttft", "tpot"))
    html = element("h2", "Latency") + tables.latencies(shown)
    html += _figures(spread, class_="figures thirds") + _figures(over_time)
    return html, spread + over_time


def _arrivals(shown: Sequence[Side]) -> Part:
    figures = _some((traffic.arrivals(shown), traffic.lateness(shown)))
    html = element("h2", "Load") + tables.load(shown) + tables.failures(shown) + _figures(figures)
    return html, figures


def _inside(shown: Sequence[Side]) -> Part:
    html = tables.phases(shown) + tables.paths(shown)
    figures: list[Figure] = []
    for number, (side, phases) in enumerate(
        zip(shown, inside.phases(shown, "phases"), strict=True)
    ):
        found = _some((phases, inside.loads(side, f"loads-{number}")))
        figures += found
        block = _figures(found)
        if found and len(shown) > 2:
            block = element("details", element("summary", words(side.name)), block)
        html += block
    return (element("h2", "Inside the server") + html if html else "", figures)


def _asked(outcome: Outcome, shown: Sequence[Side]) -> Part:
    html = element("h2", "Settings and versions") + tables.settings(shown)
    return html + tables.versions(outcome.versions), []


def _some(figures: Iterable[Figure | None]) -> list[Figure]:
    return [figure for figure in figures if figure]


def _figures(figures: Sequence[Figure], class_: str = "figures") -> str:
    return element("div", *map(_figure, figures), class_=class_) if figures else ""


def _figure(figure: Figure) -> str:
    plot = element(
        "div",
        id=figure.key,
        class_="plot",
        role="img",
        aria_label=figure.title,
        style=f"height:{figure.height}px",
    )
    note = element("figcaption", words(figure.note)) if figure.note else ""
    heading = element("h3", words(figure.title))
    return element("figure", heading, plot, note, **({"class_": "wide"} if figure.wide else {}))


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as exc:
        raise Failure(
            "a report's page is drawn by plotly, which is not installed; "
            "next: pip install 'vdisagg[report]'"
        ) from exc
    script: str = get_plotlyjs()
    return script


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1000))} kB"
