"""The front end of the stub in vLLM's place: see hosts/stub.py."""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import socket
import socketserver
import sys
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fakes.front import FakeFront
from vdisagg.control import wire
from vdisagg.plan.model import Address

PATIENCE_S = 600.0
CHECK_S = 0.01


def front_end(asked: argparse.Namespace) -> int:
    """Serve until TERM. HTTP opens once the controller has attached, as with vLLM."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    handshake = Address(asked.data_parallel_address, asked.data_parallel_rpc_port)
    front = FakeFront(handshake, api_servers=asked.api_server_count, patience_s=PATIENCE_S)
    front.attach()
    asking: queue.SimpleQueue[_Question] = queue.SimpleQueue()
    http = _Http((asked.host, asked.port), asking)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    waiting: dict[str, _Question] = {}
    while True:  # the only thread that touches the front end's sockets
        while not asking.empty():
            question = asking.get()
            waiting[front.add(question.prompt, **question.sampling)] = question
        front.read(CHECK_S)
        for name in [name for name in waiting if front.finish_reason(name) is not None]:
            answer = (front.tokens(name), front.finish_reason(name))
            waiting.pop(name).answer.set_result(answer)


class _Question:
    """A prompt, and the tokens and the finish reason that are to come."""

    def __init__(self, prompt: list[int], sampling: dict[str, Any]) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.answer: Future[tuple[list[int], int | None]] = Future()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], asking: queue.SimpleQueue[_Question]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.asking = asking
        super().__init__(address, _Api)

    def server_bind(self) -> None:
        """Without the look-up of our own name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]


class _Api(BaseHTTPRequestHandler):
    server: _Http

    def do_GET(self) -> None:
        self._reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = os.environ.get("VLLM_API_KEY")
        if key is not None and self.headers.get("authorization") != f"Bearer {key}":
            self._reply(401, {"error": "Unauthorized"})
            return
        prompt = body["prompt"]
        prompt = list(prompt.encode()) if isinstance(prompt, str) else prompt
        sampling = {k: body[k] for k in ("max_tokens", "temperature") if k in body}
        question = _Question(prompt, sampling)
        self.server.asking.put(question)
        tokens, reason = question.answer.result(PATIENCE_S)
        if reason == wire.ERROR:
            self._reply(500, {"error": "the engine failed"})
            return
        choice = {"index": 0, "text": " ".join(map(str, tokens)), "token_ids": tokens}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        choices = [{**choice, "finish_reason": "length"}]
        self._reply(200, {"choices": choices, "usage": usage, "model": body.get("model")})

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
