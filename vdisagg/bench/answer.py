"""What one streamed answer tells: which chunks brought tokens, when, how many, and how it ended.

Pure: chunks and times in, a sample out. Only tokens count. A chunk that opens a chat with a role,
one without choices, and the closing one with the usage bring none; reasoning and tool calls do.
"""

from __future__ import annotations

import msgspec

from vdisagg.bench.samples import Sample

DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, object]] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: dict[str, object] | str | None = None


_decoder = msgspec.json.Decoder(_Chunk)


class _Error(msgspec.Struct):
    message: str


class _Wrapped(msgspec.Struct):
    error: _Error


def error_text(body: bytes) -> str:
    """The message in an OpenAI-style error, bare or under `error`; else the body's beginning."""
    try:
        return msgspec.json.decode(body, type=_Wrapped).error.message
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.json.decode(body, type=_Error).message
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace")


def _brings_tokens(choice: _Choice) -> bool:
    """For chunks without a running count. A completion's chunk is only sent when a token came, even
    where its text is empty (half of a multi-byte character); a chat's first one is only a role."""
    delta = choice.delta
    if delta is None:
        return choice.text is not None
    return bool(delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)


class Answer:
    """Gathers one answer. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._totals: list[int] = []
        """Tokens up to and including each chunk of `_times`, by the running count or one each."""
        self._counted = True
        """Whether every chunk with tokens came with a running count."""
        self._usage: _Usage | None = None
        self.failure: tuple[str, str] | None = None
        """Kind and detail."""
        self.done = False

    def take(self, data: bytes, at: float) -> None:
        """One event's data, read at `at`. After a failure nothing more is taken in."""
        if self.failure:
            return
        if data == DONE:
            self.done = True
            return
        try:
            chunk = _decoder.decode(data)
        except msgspec.DecodeError as exc:
            self.failure = ("not understood", f"{exc}: {data[:200].decode(errors='replace')}")
            return
        if chunk.error is not None:
            self.failure = ("error in the stream", error_text(data))
            return
        if chunk.usage is not None:
            self._usage = chunk.usage
        if not chunk.choices:
            return
        before = self._totals[-1] if self._totals else 0
        running = chunk.usage.completion_tokens if chunk.usage else None
        if running is None:
            if not any(map(_brings_tokens, chunk.choices)):
                return
            self._counted = False
            running = before + 1
        if running > before:
            self._times.append(at)
            self._totals.append(running)

    def sample(
        self,
        *,
        number: int,
        due: float,
        sent: float,
        ended: float,
        expected_tokens: int,
        request_id: str = "",
    ) -> Sample:
        """The answer as a sample, read until `ended`. `expected_tokens`: another count in the usage is
        a failure; 0: any."""
        counted = self._usage.completion_tokens if self._usage else None
        tokens = counted if counted is not None else self._totals[-1] if self._totals else 0
        failure = self.failure
        if not failure and not self.done:
            failure = ("cut short", f"the stream ended without [DONE] after {tokens} tokens")
        if not failure and expected_tokens and counted not in (None, expected_tokens):
            failure = ("wrong length", f"{tokens} tokens where {expected_tokens} were asked for")
        details = self._usage.prompt_tokens_details if self._usage else None
        # Where chunks came without counts, their sizes are known only if each was one token.
        known = self._counted or len(self._times) == tokens
        return Sample(
            number=number,
            request_id=request_id,
            due_s=due,
            sent_s=sent,
            first_s=self._times[0] if self._times else None,
            last_s=self._times[-1] if self._times else None,
            prompt_tokens=self._usage.prompt_tokens if self._usage else 0,
            cached_tokens=details.cached_tokens if details else None,
            output_tokens=tokens,
            first_tokens=self._totals[0] if known and self._totals else 1,
            gaps_s=self._gaps() if known else None,
            failure=failure[0] if failure else None,
            detail=failure[1] if failure else "",
            failed_s=ended if failure else None,
        )

    def _gaps(self) -> list[float]:
        """One per token after the first chunk's; a chunk of k tokens shares its gap among them."""
        gaps: list[float] = []
        for i in range(1, len(self._times)):
            count = self._totals[i] - self._totals[i - 1]
            gaps += [(self._times[i] - self._times[i - 1]) / count] * count
        return gaps
