"""A server that streams completions on a beat, for benchmarks of the client: cheap, and it keeps its own times.

    python benchmarks/streams.py --ttft 0.1 --gap 0.05     # prints its port, serves until stdin closes

Chunks look like vLLM's and carry running counts. `GET /served` tells, by request id, when each
request was whole here, when its first token was written and how late the latest of its writes was
(seconds of the machine's monotonic clock, which all processes share), and the CPU seconds used.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import sys
import time

import msgspec

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LEAST_WAIT_S = 0.001  # writes that are due within a millisecond are one wake-up


class _Body(msgspec.Struct):
    max_tokens: int


_bodies = msgspec.json.Decoder(_Body)


class Served(msgspec.Struct):
    """What became of one request, by the machine's monotonic clock."""

    whole: float
    first: float = 0.0
    late_s: float = 0.0
    """The longest that a token was written after it was due."""


class Account(msgspec.Struct):
    """The answer to /served."""

    requests: dict[str, Served]
    cpu_s: float
    most_streams: int


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def token(number: int) -> bytes:
    """A chunk as vLLM 0.32 sends it for a completion, with a running count."""
    return chunked(
        b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion",'
        b'"created":1790000000,"model":"HuggingFaceTB/SmolLM2-135M-Instruct","choices":[{"index":0,'
        b'"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null,'
        b'"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}],'
        b'"usage":{"prompt_tokens":9,"total_tokens":%d,"completion_tokens":%d}}\n\n'
        % (9 + number, number)
    )


def ending(tokens: int) -> bytes:
    usage = (
        b'data: {"id":"cmpl-0","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":%d}}\n\n'
    )
    return chunked(usage % tokens) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Beat:
    """Writes all streams' tokens when they are due."""

    def __init__(self, ttft_s: float, gap_s: float) -> None:
        self.ttft_s = ttft_s
        self.gap_s = gap_s
        self.due: list[tuple[float, int, Stream]] = []
        self.served: dict[str, Served] = {}
        self.most = 0
        self._order = 0
        self._tokens: list[bytes] = [b""]
        self._woken: asyncio.TimerHandle | None = None

    def begin(self, stream: Stream, tokens: int, request_id: str, now: float) -> None:
        while len(self._tokens) <= tokens:
            self._tokens.append(token(len(self._tokens)))
        stream.served = self.served[request_id] = Served(now)
        stream.left = tokens
        stream.sent = 0
        self._push(now + self.ttft_s, stream)
        self.most = max(self.most, len(self.due))

    def _push(self, at: float, stream: Stream) -> None:
        self._order += 1
        heapq.heappush(self.due, (at, self._order, stream))
        if self._woken is None or self._woken.when() > at:
            if self._woken:
                self._woken.cancel()
            loop = asyncio.get_running_loop()
            self._woken = loop.call_at(max(at, loop.time() + LEAST_WAIT_S), self._write)

    def _write(self) -> None:
        self._woken = None
        now = time.monotonic()
        again = []
        while self.due and self.due[0][0] <= now:
            at, _, stream = heapq.heappop(self.due)
            if stream.transport.is_closing():
                continue
            stream.sent += 1
            served = stream.served
            wrote = time.monotonic()
            served.late_s = max(served.late_s, wrote - at)
            data = self._tokens[stream.sent]
            if stream.sent == 1:
                served.first = wrote
                data = HEAD + data
            if stream.sent == stream.left:
                data += ending(stream.sent)
            else:
                again.append((at + self.gap_s, stream))
            stream.transport.write(data)
        for at, stream in again:
            self._order += 1
            heapq.heappush(self.due, (at, self._order, stream))
        if self.due:
            loop = asyncio.get_running_loop()
            at = max(self.due[0][0], loop.time() + LEAST_WAIT_S)
            self._woken = loop.call_at(at, self._write)


class Stream(asyncio.Protocol):
    """One connection: requests one after another."""

    transport: asyncio.Transport
    served: Served
    left = 0
    sent = 0

    def __init__(self, beat: Beat) -> None:
        self._beat = beat
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        if not end:
            return
        fields = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        if len(body) < int(fields.get(b"content-length", b"0")):
            return
        self._read = b""
        if head.startswith(b"GET"):
            self._account()
        else:
            asked = _bodies.decode(body)
            name = fields.get(b"x-request-id", str(len(self._beat.served)).encode()).decode()
            self._beat.begin(self, asked.max_tokens, name, time.monotonic())

    def _account(self) -> None:
        account = Account(self._beat.served, time.process_time(), self._beat.most)
        text = msgspec.json.encode(account)
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ttft", type=float, default=0.1)
    parser.add_argument("--gap", type=float, default=0.05)
    args = parser.parse_args()
    beat = Beat(args.ttft, args.gap)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stream(beat), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.freeze()
    await loop.run_in_executor(None, sys.stdin.buffer.read)  # until whoever started it ends


if __name__ == "__main__":
    asyncio.run(main())
