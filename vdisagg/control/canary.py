"""Whether a proof's answer is the one that the decode engine computes alone. Pure.

Greedy decoding of the same prompt gives the same tokens, except where two tokens are as good as equal:
there, rounding decides, and it differs with the batch and with the way the KV cache came about. The log
probabilities of the engine's own computation show such a near tie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

NEAR_TIE: Final = 0.2
"""Gap of two log probabilities below which rounding may decide. bfloat16 has 8 significant bits: logits
between 16 and 32 are 0.125 apart, and sums of them differ by a step or so. What a wrong KV cache brings
about is another distribution altogether: gaps of whole units, at many tokens."""


def verdict(
    over_link: Sequence[int], alone: Sequence[int], alone_top: Sequence[Mapping[int, float]]
) -> str:
    """Empty where both answers agree, or part at a near tie; else where, and in what, they differ.

    `alone_top`: by position, log probabilities of the likeliest tokens in what was computed alone.
    What comes after the first difference says nothing: it follows other tokens.
    """
    for at, (link_token, alone_token) in enumerate(zip(over_link, alone, strict=False)):
        if link_token == alone_token:
            continue
        if at < len(alone_top) and _near_tie(link_token, alone_top[at]):
            return ""
        return (
            f"token {at + 1} of {len(alone)} is {link_token}, where it computes {alone_token} alone"
        )
    if len(over_link) != len(alone):
        return f"{len(over_link)} tokens, where it computes {len(alone)} alone"
    return ""


def _near_tie(token: int, top: Mapping[int, float]) -> bool:
    """Whether `token` is one of the two likeliest, and these are as good as equal."""
    first, *others = sorted(top.items(), key=lambda item: -item[1])[:2] or [(token, 0.0)]
    if not others or token not in (first[0], others[0][0]):
        return False
    return first[1] - others[0][1] < NEAR_TIE
