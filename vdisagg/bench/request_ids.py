"""Pure: which client's request an id of vLLM's front end stands for."""

from __future__ import annotations

import re
from typing import Final

FRONT_ID: Final = re.compile(
    r"(?:\d+_)?(?:cmpl-(?P<completion>.+)-\d+|chatcmpl-(?P<chat>.+))-[0-9a-f]{8}", re.DOTALL
)
"""What vLLM 0.32 makes of X-Request-Id: cmpl-ID-N for the N-th prompt of a completion, chatcmpl-ID for a
chat, then eight random digits; with n above 1, the number of the choice in front of it all.

Source: vllm/entrypoints/openai/{completion,chat_completion}/serving.py, v1/engine/input_processor.py
(assign_request_id), v1/engine/parallel_sampling.py.
"""


def client_id(front_id: str) -> str:
    """The X-Request-Id of a completion's or a chat's front-end id; empty: it is no such id."""
    found = FRONT_ID.fullmatch(front_id)
    return "" if found is None else found["completion"] or found["chat"]
