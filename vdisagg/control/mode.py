"""Pure: how a request wants to be served, which its client may say: over both kinds of engines, or by one.

A client says it in the body's `vllm_xargs` (cluster/modes.py), which vLLM passes on in
`sampling_params.extra_args`. It is our word, and no engine sees it.
"""

from __future__ import annotations

from vdisagg.cluster.modes import COLOCATED, KEY, PD
from vdisagg.control.handover import Params


def is_colocated(sampling: Params | None) -> bool:
    """Whether one engine is to compute all of it."""
    return _said(sampling) == COLOCATED


def fault(sampling: Params | None) -> str:
    """What is wrong with what it says; empty: nothing. vLLM lets text, numbers and lists of them through."""
    said = _said(sampling)
    return "" if said in (PD, COLOCATED) else f"its {KEY} is {said!r:.80}; known: {PD}, {COLOCATED}"


def without_mode(sampling: Params) -> Params:
    """The sampling parameters as engines get them."""
    extra = sampling.get("extra_args")
    if not extra or KEY not in extra:
        return sampling
    kept = {key: value for key, value in extra.items() if key != KEY}
    return {**sampling, "extra_args": kept or None}


def _said(sampling: Params | None) -> object:
    return ((sampling or {}).get("extra_args") or {}).get(KEY, PD)
