"""Real sockets between nodes: one node listens where a process will, the others dial.

Both sides say a word that only this preflight knows, so that nobody else's port is taken for ours.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Value = dict[str, Any]

AGAIN_S = 0.2
MOST_AT_ONCE = 32
MOST_WORD = 512  # bytes of a greeting
BYE = "bye"


def listen(job: Value) -> Value:
    """Listen on `addresses` ([host, port, number of callers]) until all have called, or somebody says
    bye, or `hold_s` is over. Answers [host, port, fault or ""] for each.
    """
    deadline = time.monotonic() + job["hold_s"]
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(selectors.DefaultSelector())
        faults, expected = [], {}
        for host, port, callers in job["addresses"]:
            try:
                listener = stack.enter_context(bound(host, port))
            except OSError as exc:
                faults.append([host, port, reason(exc)])
                continue
            faults.append([host, port, ""])
            expected[(host, port)] = callers
            waiting.register(listener, selectors.EVENT_READ, (host, port))
        met = {address: set() for address in expected}  # type: dict[tuple[str, int], set[str]]
        while any(len(met[a]) < expected[a] for a in expected) and time.monotonic() < deadline:
            for key, _ in waiting.select(max(0.0, deadline - time.monotonic())):
                caller = greeted(key.fileobj, job["nonce"])
                if caller == BYE:
                    return {"addresses": faults}
                if caller:
                    met[key.data].add(caller)
    return {"addresses": faults}


def main(words: list[str]) -> None:
    """`listen` or `dial`, with the job as JSON on stdin."""
    do = listen if words == ["listen"] else dial
    json.dump(do(json.load(sys.stdin)), sys.stdout)


def bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(target)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def greeted(listener: Any, nonce: str) -> str:
    """The name of who calls; "" for strangers, who get no answer."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return ""
    with connection:
        connection.settimeout(2.0)
        try:
            with connection.makefile("rwb") as stream:
                line = stream.readline(MOST_WORD).decode().strip()
                word, _, caller = line.partition(" ")
                if word != nonce:
                    return ""
                stream.write(f"{nonce} here\n".encode())
                stream.flush()
        except (OSError, UnicodeDecodeError):
            return ""
    return str(caller)


def dial(job: Value) -> Value:
    """Call each of `targets` ([host, port]) as `name`. Answers [host, port, fault or ""] for each.

    A refused call is tried again for `patience_s`, as the listener may not have come up yet.
    """
    found: dict[int, str] = {}
    waiting = list(enumerate(job["targets"]))[::-1]

    def work() -> None:
        while True:
            try:
                at, (host, port) = waiting.pop()
            except IndexError:
                return
            found[at] = call(host, port, job)

    # Plain threads: a pool's module takes longer to load than all of this to run.
    threads = [threading.Thread(target=work) for _ in range(min(MOST_AT_ONCE, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"addresses": [[*target, found[at]] for at, target in enumerate(job["targets"])]}


def call(host: str, port: int, job: Value) -> str:
    deadline = time.monotonic() + job["patience_s"]
    while True:
        try:
            return greet(host, port, job)
        except ConnectionRefusedError:
            if time.monotonic() >= deadline:
                return "connection refused"
            time.sleep(AGAIN_S)
        except OSError as exc:
            return reason(exc)


def greet(host: str, port: int, job: Value) -> str:
    with socket.create_connection((host, port), timeout=job["limit_s"]) as connection:
        answer = ""
        # Whatever goes wrong from here on, somebody is there who is not our listener.
        with contextlib.suppress(OSError):
            connection.sendall(f"{job['nonce']} {job['name']}\n".encode())
            with connection.makefile("rb") as stream:
                answer = stream.readline(MOST_WORD).decode(errors="replace")
    return "" if answer == f"{job['nonce']} here\n" else "something else answers there"


def reason(exc: OSError) -> str:
    if isinstance(exc, socket.timeout):
        return "timed out"
    if exc.errno == errno.EADDRINUSE:
        return "the port is taken"
    return (exc.strerror or str(exc)).lower()
