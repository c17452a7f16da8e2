"""Whether P/D pays, out of two sweeps: which side holds an SLO up to the higher rate."""

from __future__ import annotations

from vdisagg.bench.sweep import Point, Sweep, rate, rate_text
from vdisagg.bench.verdict import Answer, Verdict, with_doubts


def sweep_verdict(pd: Sweep, baseline: Sweep) -> Verdict:
    """Of two sweeps with the same SLO over the same rates.

    The grid of rates is all the precision there is: equal ones are no difference shown.
    """
    a, b = pd.label or "P/D", baseline.label or "colocated"
    found = [*pd.doubts, *baseline.doubts]
    for label, side in ((a, pd), (b, baseline)):
        again = ", ".join(rate_text(each) for each in side.odd)
        if again:
            found.append(f"{label}: {again} met the SLO after a lower rate had missed it")
    if list(map(rate, pd.points)) != list(map(rate, baseline.points)):
        found.append("the rates tried differ")
    answer, sentence = _compared(a, pd, b, baseline)
    return Verdict(answer, with_doubts(sentence, found), found, a, b, [], pd.slo)


def _compared(a: str, pd: Sweep, b: str, baseline: Sweep) -> tuple[Answer, str]:
    if pd.slo is None:
        return "not measured", "No verdict: a sweep is judged by its SLO, and none was given."
    ours, theirs = _held(pd.best), _held(baseline.best)
    goal = f"{pd.attain * 100:g} % of the requests within {pd.slo}"
    tried = f"rates tried: {', '.join(rate_text(each) for each in pd.points)}"
    if ours == theirs:
        where = f"up to {rate_text(pd.best)}" if pd.best else "at no rate"
        return "no difference", (
            f"No difference shown: {a} and {b} both have {goal} {where} ({tried})."
        )
    sides = ", ".join(
        f"{label} up to {rate_text(side.best)}" if side.best else f"{label} at no rate"
        for label, side in ((a, pd), (b, baseline))
    )
    if ours > theirs:
        return "pays", f"{a} pays here: {goal}, {sides} ({tried})."
    return "does not pay", f"Don't: {goal}, {sides} ({tried})."


def _held(best: Point | None) -> float:
    return 0.0 if best is None else rate(best)
