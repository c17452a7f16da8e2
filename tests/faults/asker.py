"""Clients that ask while things break, and remember every token that they got and how it ended."""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

Ending = Literal["whole", "error", "broken", "refused", "silent"]
"""whole: with a finish reason. error: told so, by an event or a status. broken: the connection ended.
refused: nobody listened. silent: nothing came for the whole patience; never right."""


@dataclass(frozen=True)
class Question:
    """A greedy completion of token ids."""

    prompt: tuple[int, ...]
    max_tokens: int
    options: tuple[tuple[str, Any], ...] = ()
    """What else is asked for, such as ("logprobs", 1)."""

    def body(self, model: str) -> dict[str, Any]:
        """For /v1/completions, with a salt of its own: no cache may hide a transfer."""
        return {
            "model": model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "cache_salt": uuid.uuid4().hex,
            **dict(self.options),
        }


@dataclass
class Asked:
    """A streaming request in a thread of its own. Times are of the monotonic clock."""

    question: Question
    url: str
    model: str
    patience_s: float
    tokens: list[int] = field(default_factory=list)
    asked_at: float = 0.0
    first_at: float | None = None
    ended_at: float | None = None
    ending: Ending | None = None
    detail: str = ""
    longest_gap_s: float = 0.0

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self, deadline: float) -> None:
        """Wait for its end, until `deadline`."""
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def wrong(self, right: list[int], endings: frozenset[Ending]) -> str:
        """What is wrong with it; empty where nothing is. `right`: the tokens of the whole answer."""
        said = f"{self.ending} {self.detail}after {len(self.tokens)} of {len(right)} tokens"
        if self.ending is None:
            return f"has not ended: {said}"
        if self.ending not in endings:
            return f"should have ended {' or '.join(sorted(endings))}: {said}"
        if self.ending == "whole" and self.tokens == right:
            return ""
        if self.ending != "whole" and self.tokens == right[: len(self.tokens)]:
            return ""
        at = next(
            (n for n, (a, b) in enumerate(zip(self.tokens, right, strict=False)) if a != b),
            min(len(self.tokens), len(right)),
        )
        around = slice(max(0, at - 2), at + 3)
        return f"wrong at token {at}: {self.tokens[around]}, not {right[around]}: {said}"

    def _run(self) -> None:
        self.asked_at = time.monotonic()
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.netloc, timeout=self.patience_s)
        try:
            self._ask(connection)
        except ConnectionRefusedError:
            self.ending = "refused"
        except TimeoutError:
            self.ending = "silent"
        except (OSError, http.client.HTTPException) as exc:
            self.ending, self.detail = "broken", f"({exc!r}) "
        finally:
            connection.close()
            self.ended_at = time.monotonic()

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        body = {**self.question.body(self.model), "stream": True}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            self.detail = f"({response.status} {response.read()[:200]!r}) "
            self.ending = "error"
            return
        ending: Ending | None = None
        last = time.monotonic()
        while line := response.readline():
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                self.ending = ending or "broken"
                return
            now = time.monotonic()
            self.longest_gap_s, last = max(self.longest_gap_s, now - last), now
            ending = self._take(json.loads(line[6:])) or ending
        self.ending = "broken" if ending is None else ending

    def _take(self, chunk: dict[str, Any]) -> Ending | None:
        if "error" in chunk:
            self.detail = f"({str(chunk['error'])[:200]}) "
            return "error"
        for choice in chunk["choices"]:
            self.tokens += choice.get("token_ids") or []
            if self.tokens and self.first_at is None:
                self.first_at = time.monotonic()
            if choice.get("finish_reason"):
                return "whole"
        return None


def wait_for(condition: Callable[[], object], what: Callable[[], str], patience_s: float) -> None:
    """Wait for a condition; `what` goes into the failure."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


def ends(asked: Mapping[str, list[Asked]]) -> str:
    """For failures: how each went."""
    return "; ".join(
        f"{phase}: " + ", ".join(f"{a.ending} {len(a.tokens)}" for a in each)
        for phase, each in asked.items()
    )
