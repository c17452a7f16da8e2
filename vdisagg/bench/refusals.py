"""What to do about a server that refuses requests as such: mostly it knows fewer fields than vLLM."""

from __future__ import annotations

REFUSED = ("HTTP 400", "HTTP 422")
"""Kinds of failure: the server has read the request and does not take it."""

NOT_OPENAIS = ("cache_salt", "ignore_eos", "continuous_usage_stats", "vllm_xargs")
"""Fields that OpenAI's API lacks and that we send without --strict."""

STRICT = "say --strict, which sends only the fields that OpenAI has"


def advice(kind: str | None, detail: str, *, strict: bool) -> str:
    """What to do about a request that failed so."""
    if kind not in REFUSED:
        return "see that the cluster is up (`vdisagg status`) and that URL and model are right"
    if names_ours(detail) and not strict:
        return STRICT
    fits = "see that model, prompt and answer are what the server takes"
    return fits if strict else f"{fits}; where it takes only OpenAI's own fields, {STRICT}"


def names_ours(detail: str) -> bool:
    """Whether what the server says names a field that OpenAI's API lacks."""
    return any(field in detail for field in NOT_OPENAIS)
