"""HTTP before a fake front end: completions, whole or as a stream; token ids or text in, token ids out."""

from __future__ import annotations

import json
import queue
import signal
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NoReturn

from fakes.front import FakeFront
from vdisagg.control import wire
from vdisagg.plan.model import Address

PATIENCE_S: Final = 600.0
CHECK_S: Final = 0.005
SAMPLING: Final = ("max_tokens", "temperature", "seed", "presence_penalty", "logprobs")
REASONS: Final = {wire.LENGTH: "length"}


def front_end(
    address: tuple[str, int], handshake: Address, *, api_servers: int = 1, key: str | None = None
) -> NoReturn:
    """Serve until TERM. HTTP opens once the controller has attached, as with vLLM. `key`: what a
    request has to bear."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    front = FakeFront(handshake, api_servers=api_servers, patience_s=PATIENCE_S)
    front.attach()
    http = Http(address, front, key)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    serve(front, http)


class Question:
    """A prompt, and where its outputs go, one by one."""

    def __init__(self, prompt: list[int], sampling: dict[str, Any]) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.outputs: queue.SimpleQueue[wire.Output] = queue.SimpleQueue()
        self.gone = False
        """Whether the client has hung up."""


def serve(front: FakeFront, http: Http) -> NoReturn:
    """The only thread that touches the front end's sockets."""
    live: dict[str, tuple[Question, int]] = {}
    while True:
        while not http.asking.empty():
            question = http.asking.get()
            live[front.add(question.prompt, **question.sampling)] = (question, 0)
        front.read(CHECK_S)
        for name, (question, passed) in list(live.items()):
            outputs = front.received.get(name, [])
            for output in outputs[passed:]:
                question.outputs.put(output)
            live[name] = (question, len(outputs))
            ended = front.finish_reason(name) is not None
            if question.gone and not ended:
                front.abort(name)
            if ended or question.gone:
                del live[name]
                front.received.pop(name, None)


class Http(ThreadingHTTPServer):
    """Hands questions over to the thread with the sockets."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], front: FakeFront, key: str | None) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.asking: queue.SimpleQueue[Question] = queue.SimpleQueue()
        self.key = key
        self._front = front
        super().__init__(address, Api)

    def unhealthy(self) -> str | None:
        """As vdisagg_health has it. The switches, where they are loaded, take what the channel carries
        before the fake does."""
        switches = sys.modules.get("vdisagg_sockets")
        channels = self._front.channels if switches is None else [switches.CHANNEL]
        now = time.monotonic()
        return next(filter(None, (channel.unhealthy(now=now) for channel in channels)), None)

    def server_bind(self) -> None:
        """Without the look-up of our own name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]


class Api(BaseHTTPRequestHandler):
    """GET /health and POST /v1/completions."""

    server: Http

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(503 if self.server.unhealthy() else 200, {})
        else:
            self._reply(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.server.key
        if key is not None and self.headers.get("authorization") != f"Bearer {key}":
            self._reply(401, {"error": "Unauthorized"})
            return
        prompt = body["prompt"]
        prompt = list(prompt.encode()) if isinstance(prompt, str) else prompt
        question = Question(prompt, {k: body[k] for k in SAMPLING if k in body})
        self.server.asking.put(question)
        try:
            if body.get("stream"):
                self._stream(question)
            else:
                self._whole(question)
        except OSError:  # the client has hung up
            question.gone = True

    def _whole(self, question: Question) -> None:
        tokens: list[int] = []
        while True:
            output = question.outputs.get(timeout=PATIENCE_S)
            tokens += output.new_token_ids
            if output.finish_reason is not None:
                break
        if output.finish_reason not in REASONS:
            self._reply(500, {"error": {"message": "Internal server error", "code": 500}})
            return
        usage = {"prompt_tokens": len(question.prompt), "completion_tokens": len(tokens)}
        self._reply(200, {"choices": [choice(tokens, "length")], "usage": usage})

    def _stream(self, question: Question) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        while True:
            output = question.outputs.get(timeout=PATIENCE_S)
            reason = output.finish_reason
            if reason is None or reason in REASONS:
                said = REASONS.get(reason) if reason is not None else None
                self._event({"choices": [choice(output.new_token_ids, said)]})
            else:
                self._event({"error": {"message": "Internal server error", "code": 500}})
            if reason is not None:
                self.wfile.write(b"data: [DONE]\n\n")
                return

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


def choice(tokens: list[int], reason: str | None) -> dict[str, Any]:
    """As vLLM says it with `return_token_ids`."""
    text = "".join(f" {token}" for token in tokens)
    return {"index": 0, "text": text, "token_ids": tokens, "finish_reason": reason}
