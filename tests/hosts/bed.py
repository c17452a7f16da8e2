"""A test bed: a host for the command line, nodes with sshd, the stub in vLLM's place, one topology."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from fakes import living
from fakes.engine import continuation
from hosts.network import Command, Host, Network
from hosts.processes import children
from hosts.stub import install

if TYPE_CHECKING:
    from pathlib import Path

UP_S = 120.0
PROMPT = list(range(200, 240))


class Bed:
    """`here` is where commands are typed; it knows every node that `node` makes, and may log in."""

    def __init__(
        self,
        network: Network,
        *,
        here: Sequence[str] = ("198.18.0.1/24",),
        vllm: Path | None = None,
    ) -> None:
        """`here` has these addresses; `vllm` is another than the stub."""
        self.network = network
        self.here = network.host("here", *here)
        self.stub = install(network.directory / "bin")
        self.vllm = vllm or self.stub
        self.model = network.directory / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text('{"model_type": "stub"}\n')
        self._made = 0

    def node(self, name: str, *addresses: str, port: int = 22, options: Sequence[str] = ()) -> Host:
        """A host with an sshd on its first address.

        Where none is given it is the next one of 198.18.0.0/24, from 198.18.0.11 on.
        """
        self._made += 1
        host = self.network.host(name, *(addresses or (f"198.18.0.{10 + self._made}/24",)))
        host.serve_ssh(port, addresses=[host.address], options=options)
        self.here.trust(host)
        return host

    def nodes(self, count: int) -> list[Host]:
        """n1, n2 …"""
        return [self.node(f"n{number}") for number in range(1, count + 1)]

    def entry(self, host: Host) -> dict[str, Any]:
        """What a topology says of a node: as little as works."""
        common = {"device": "cpu", "vllm": str(self.vllm)}
        if host is self.here:
            return {**common, "data_ip": host.address}
        port = host.sshds[0].port
        ssh = {"host": host.address, "user": "root", **({"port": port} if port != 22 else {})}
        return {**common, "ssh": ssh}

    def topology(self, hosts: Sequence[Host], **parts: Any) -> Path:
        """Write a topology: prefill on the first host, decode on the last, the rest of it here.

        `parts` are joined to that, map by map.
        """
        nodes = {host.name: self.entry(host) for host in (self.here, *hosts)}
        whole: dict[str, Any] = {
            "name": "net",
            "model": str(self.model),
            "nodes": nodes,
            "prefill": {"node": hosts[0].name},
            "decode": {"node": hosts[-1].name},
            "timeouts": {"launch_s": 60, "stop_s": 2, "request_s": 30},
        }
        whole = joined(whole, parts)
        file = self.here.home / f"{whole['name']}.yaml"
        file.write_text(yaml.safe_dump(whole, sort_keys=False))
        return file

    # -- commands -------------------------------------------------------------------------------

    def vdisagg(
        self,
        *words: str | Path,
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        limit_s: float = UP_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command here to its end. Never a traceback, whatever comes of it."""
        done = self.here.run(
            *self.words(*words), environment=environment, check=False, limit_s=limit_s
        )
        said = f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, said
        assert done.returncode == 0 or not check, said
        return done

    def start(self, *words: str | Path, environment: Mapping[str, str] | None = None) -> Command:
        """Start a command here, and go on."""
        return self.here.start(*self.words(*words), environment=environment)

    def words(self, *words: str | Path) -> tuple[str, ...]:
        """The command line of a command."""
        return (sys.executable, "-m", "vdisagg", *map(str, words))

    def status(self) -> dict[str, Any]:
        """`vdisagg status --json`."""
        view: dict[str, Any] = json.loads(self.vdisagg("status", "--json", check=False).stdout)
        return view

    def is_healthy(self) -> None:
        """Wait until `status` says so: for a node that is slow to answer it waits for 3 s only."""
        until(lambda: self.status()["healthy"] is True, lambda: str(self.status()), UP_S)

    # -- the cluster ----------------------------------------------------------------------------

    def post(
        self,
        body: Mapping[str, Any],
        *,
        url: str = "http://127.0.0.1:8000",
        key: str = "",
        limit_s: float = 30.0,
    ) -> tuple[int, dict[str, Any]]:
        """POST /v1/completions, from here."""
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        with self.here.entered():
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=limit_s)
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), headers)
                response = connection.getresponse()
                return response.status, json.loads(response.read())
            finally:
                connection.close()

    def serves(self, *, url: str = "http://127.0.0.1:8000") -> None:
        """Ask for eight tokens, and hold them against what one plain engine would answer."""
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        status, answer = self.post(body, url=url)
        assert status == 200, answer
        assert answer["choices"][0]["token_ids"] == continuation(PROMPT, 8)

    def said(self) -> list[str]:
        """Every command line that is to be seen on the hosts, and every file in their homes."""
        found: list[str] = []
        for host in self.network.hosts.values():
            found += host.processes().values()
            texts = living.texts(host.home)
            found += [text for path, text in texts.items() if ".ssh" not in path.parts]
        return found

    def left(self) -> dict[str, list[str]]:
        """Command lines of what runs on each host now, beside sshd; hosts with nothing are left out."""
        found = {h.name: list(h.processes().values()) for h in self.network.hosts.values()}
        return {name: words for name, words in found.items() if words}

    def nothing_is_left(self, *, but: Sequence[str] = ()) -> None:
        """Wait until nothing runs on any host `but` these: what served a command's login ends a moment later."""
        until(lambda: set(self.left()) <= set(but), lambda: str(self.left()))

    def runs(self, **counts: int) -> None:
        """Wait until there are so many processes on these hosts, for the same reason."""
        hosts = self.network.hosts
        until(
            lambda: {name: len(hosts[name].processes()) for name in counts} == counts,
            lambda: f"{counts}: {self.left()}",
        )


def send(command: Command, number: int) -> None:
    """A signal for a command that `Bed.start` has started (its own child only enters the host)."""
    (pid,) = children(command.pid)
    os.kill(pid, number)


def joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Both maps, and the maps in them, as one; what is new wins. None takes a key away."""
    whole = dict(old)
    for key, value in new.items():
        if value is None:
            whole.pop(key, None)
        elif isinstance(value, dict) and isinstance(whole.get(key), dict):
            whole[key] = joined(whole[key], value)
        else:
            whole[key] = value
    return whole


def until(
    condition: Callable[[], object], excuse: Callable[[], str] = lambda: "", limit_s: float = 60.0
) -> None:
    """Wait for a condition; the limit is generous, since it only ends a test that fails."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was never met; {excuse()}"
        time.sleep(0.05)
