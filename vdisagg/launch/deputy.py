"""The deputy: our one process on a node for as long as a connection lasts. It does there what it is asked.

Each question is a module of ours and the words for its `main`, and is answered in a process of its own,
forked from this one: as if `python MODULE WORDS` had been run, without an interpreter that starts and
modules that load. So one that hangs holds up no other, and one that daemonises (the guard's start) has no
thread or descriptor of ours in its way; this process itself has one thread, and does nothing else.

Lines of JSON come on stdin: {"sources": {module: text}}, what is imported later comes before it is asked for;
and {"id", "module", "words", "stdin"}. Lines go to stdout: first {"deputy": this interpreter}, then for
each question {"id", "code", "stdout", "stderr"}, in the order in which they end. The end of stdin ends
the deputy; what is under way then goes on by itself, and nobody hears of it. So does a long silence (the
last argument, in seconds): where a cable is cut, sshd may not know for hours.

This file arrives as text, and knows only the standard library and Python 3.8. Nothing is written.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import selectors
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

PIECE = 65536
ARGUMENTS_BEGIN, ARGUMENTS_END = 48 - 3, 49 - 3  # proc(5), /proc/PID/stat, from the third field on


class Sources:
    """Finds modules among the texts that have come in, before anything that the node may have."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in self.texts:
            return ModuleSpec(name, self)  # type: ignore[arg-type]  # a loader by what it does
        if any(other.startswith(f"{name}.") for other in self.texts):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # as above
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self.texts:
            code = compile(self.texts[module.__name__], module.__name__, "exec")
            exec(code, module.__dict__)


class Step:
    """A question, in the process that answers it."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._module = asked["module"]
        self._words = asked["words"]
        self._stdin = asked["stdin"]

    def __call__(self) -> None:
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names, not paths
            if int(name) > 2:
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(int(name))
        sys.argv = [f"{self._module.rpartition('.')[2]}.py", *self._words]
        show_as("vdisagg", *sys.argv)
        sys.stdin = io.StringIO(self._stdin)
        importlib.import_module(self._module).main(self._words)
        sys.stdout.flush()
        os._exit(0)  # taking the interpreter down would cost more than all of the step


class Running:
    """A process that answers a question, and what has been heard of it."""

    def __init__(self, number: int, pid: int, pipes: tuple[int, int]) -> None:
        self.number = number
        self.pid = pid
        self.said: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
        self.open = set(pipes)

    def answer(self) -> dict[str, Any]:
        """Wait for its end, which is near: both pipes have ended."""
        _, status = os.waitpid(self.pid, 0)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        out, err = (b"".join(said).decode("utf-8", "replace") for said in self.said.values())
        return {"id": self.number, "code": code, "stdout": out, "stderr": err}


class Deputy:
    """Reads questions, and passes answers on."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._sources = Sources()
        sys.meta_path.insert(0, self._sources)
        self._running: dict[int, Running] = {}
        """By pipe."""
        self._waiting = selectors.PollSelector()

    def serve(self) -> Step | None:
        """Until stdin ends. In each process that is to answer it returns too, with the step to be done."""
        say({"deputy": sys.executable})
        self._waiting.register(0, selectors.EVENT_READ)
        held = b""
        while True:
            heard = self._waiting.select(self._silence_s)
            if not heard and not self._running:
                return None
            for key, _ in heard:
                piece = os.read(key.fd, PIECE)
                if key.fd != 0:
                    self._hear(key.fd, piece)
                    continue
                if not piece:
                    return None
                *lines, held = (held + piece).split(b"\n")
                for line in lines:
                    step = self._take(json.loads(line.decode()))
                    if step is not None:
                        return step

    def _take(self, said: dict[str, Any]) -> Step | None:
        if "sources" in said:
            self._sources.texts.update(said["sources"])
            return None
        importlib.import_module(said["module"])  # here, so that it is loaded once
        gc.freeze()  # what the children share with us, they need not look at, and so not copy
        pipes = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            null = os.open(os.devnull, os.O_RDONLY)
            for mine, place in ((null, 0), (pipes[0][1], 1), (pipes[1][1], 2)):
                os.dup2(mine, place)
            return Step(said)
        running = Running(said["id"], pid, (pipes[0][0], pipes[1][0]))
        for reading, writing in pipes:
            os.close(writing)
            self._running[reading] = running
            self._waiting.register(reading, selectors.EVENT_READ)
        return None

    def _hear(self, pipe: int, piece: bytes) -> None:
        running = self._running[pipe]
        if piece:
            running.said[pipe].append(piece)
            return
        self._waiting.unregister(pipe)
        os.close(pipe)
        del self._running[pipe]
        running.open.remove(pipe)
        if not running.open:
            say(running.answer())


def say(value: dict[str, Any]) -> None:
    rest = json.dumps(value).encode() + b"\n"
    while rest:
        rest = rest[os.write(1, rest) :]


def show_as(*words: str) -> None:
    """Be listed by `ps` with these words, cut to the room that our own have; where that can be done."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  # pathlib takes long to load
            fields = file.read().rpartition(b") ")[2].split()
        begin, end = int(fields[ARGUMENTS_BEGIN]), int(fields[ARGUMENTS_END])
        room = end - begin
        title = "\0".join(words).encode("utf-8", "surrogateescape")[: room - 1]
        memory = os.open("/proc/self/mem", os.O_RDWR)
        try:
            os.pwrite(memory, title.ljust(room, b"\0"), begin)
        finally:
            os.close(memory)


def main() -> None:
    show_as("vdisagg", "deputy.py")
    try:
        step = Deputy(float(sys.argv[-1])).serve()
    except BrokenPipeError:
        return  # nobody is there to be answered
    if step is not None:
        step()


if __name__ == "__main__":
    main()
