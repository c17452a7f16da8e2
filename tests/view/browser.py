"""A headless Chromium that opens files and answers questions about them, over DevTools on two pipes.

It has a profile of its own, no network, and is ended with all its processes.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, and the pages are ours
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1280,1000",
    "--remote-debugging-pipe",
)
PATIENCE_S = 120.0  # a page takes 1 s on an idle machine, and tests share theirs
LEAVE_S = 10.0
READ, WRITE = 3, 4
"""The descriptors on which Chromium reads and writes DevTools messages."""


class Browser:
    """One process and one open page at a time."""

    def __init__(self, program: str) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="vdisagg-chromium-"))
        self._number = 0
        self._target = ""
        self._session = ""
        self._rest = b""
        self.heard: list[Json] = []
        """Events since the page was opened."""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Away from 3 and 4 first, so that neither is overwritten before it is copied.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]
        null = os.open(os.devnull, os.O_RDWR)
        copies = {high[0]: (READ,), high[1]: (WRITE,), null: (0, 1, 2)}
        self._pid = os.posix_spawn(
            program,
            [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            os.environ | {"HOME": str(self._profile)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, fd, to) for fd, places in copies.items() for to in places
            ],
            setpgroup=0,
        )
        for fd in (theirs_in, theirs_out, null, *high):
            os.close(fd)

    def close(self) -> None:
        """End it and all its processes; nothing of it stays on the disk."""
        os.close(self._out)  # it leaves when it can't be told anything any more
        handle = os.pidfd_open(self._pid)
        select.select([handle], [], [], LEAVE_S)
        os.close(handle)
        os.killpg(self._pid, signal.SIGKILL)  # what is left of its group; it is not reaped yet
        os.waitpid(self._pid, 0)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def prefer(self, scheme: str) -> None:
        """Light or dark; the page hears of it in one of the next frames."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def wait_for(self, expression: str, value: object) -> None:
        """Look at an expression once per frame until it has this value."""
        deadline = time.monotonic() + PATIENCE_S
        while (seen := self.evaluate(expression)) != value:
            assert time.monotonic() < deadline, f"{expression} is {seen!r}, not {value!r}"
            self.evaluate("new Promise((done) => requestAnimationFrame(() => done(0)))")

    def open(self, path: Path) -> None:
        """Load a file in a new tab, in light colours, and wait until its scripts have run."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.prefer("light")
        self.heard.clear()
        self.ask("Page.navigate", url=path.as_uri())
        self._wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """A JavaScript expression's value; a promise's, when it is there."""
        answer = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[Json]:
        """What the console got to hear, and exceptions that nobody caught."""
        bad = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.heard if event["method"] in bad]

    def requested(self) -> list[str]:
        """The addresses that the page wanted something from."""
        sent = [event for event in self.heard if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def ask(self, method: str, **parameters: Any) -> Any:
        """A DevTools call's result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            heard = self._next(deadline)
            if heard.get("id") == self._number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]
            self.heard.append(heard)

    def _wait_for(self, event: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any(heard["method"] == event for heard in self.heard):
            self.heard.append(self._next(deadline))

    def _next(self, deadline: float) -> Json:
        while b"\0" not in self._rest:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._in], [], [], left)[0], (
                f"Chromium is silent for {PATIENCE_S} s"
            )
            piece = os.read(self._in, 1 << 20)
            assert piece, "Chromium has ended"
            self._rest += piece
        message, self._rest = self._rest.split(b"\0", 1)
        found: Json = json.loads(message)
        return found
