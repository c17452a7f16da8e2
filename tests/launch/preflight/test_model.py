"""The model as a node has it: in a folder, in the hub's cache, or on a hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from vdisagg.launch.preflight.node import model

CONFIG = b'{"model_type": "llama"}'
HASH = hashlib.sha256(CONFIG).hexdigest()


class Hub(ThreadingHTTPServer):
    """A hub with an open model, a gated one, and one that has moved to another host."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.elsewhere = ""
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Page(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        token = self.headers["Authorization"]
        self.server.asked.append((self.path, token))
        if self.path.startswith("/org/moved/"):
            target = self.path.replace("moved", "open")
            self.send_response(307)
            self.send_header("Location", self.server.elsewhere + target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        code = 200
        if self.path.startswith("/org/gated/") and token != "Bearer right":
            code = 401
        elif not self.path.endswith("/config.json") or "/org/nothing/" in self.path:
            code = 404
        self.send_response(code)
        self.end_headers()
        self.wfile.write(CONFIG if code == 200 else b"")

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as served:
        thread = Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, str]:
    """An environment whose cache has nothing."""
    return {"HF_HOME": str(tmp_path / "hf")}


def put_in_cache(home: Path, commit: str = "abc123") -> None:
    entry = home / "hub" / "models--org--open"
    (entry / "snapshots" / commit).mkdir(parents=True)
    (entry / "snapshots" / commit / "config.json").write_bytes(CONFIG)
    (entry / "refs").mkdir(exist_ok=True)
    (entry / "refs" / "main").write_text(commit)


def test_d13_a_folder_is_known_by_its_small_files_and_its_weights_sizes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"123")
    first = model.look(str(tmp_path), "", "", {})
    assert (first["kind"], first["source"]) == ("", "path")
    assert first["files"]["config.json"] == HASH
    assert list(first["files"]) == ["config.json", "tokenizer.json"]
    (tmp_path / "model.safetensors").write_bytes(b"12")  # a copy that broke off
    assert model.look(str(tmp_path), "", "", {})["weights"] != first["weights"]


def test_d13_a_folder_that_is_not_there_is_missing(tmp_path: Path) -> None:
    seen = model.look(f"{tmp_path}/m", "", "", {})
    assert (seen["kind"], seen["where"]) == ("missing", f"{tmp_path}/m does not exist")


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    assert model.look(str(tmp_path), "", "", {})["kind"] == "no-config"


def test_a_single_file_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    seen = model.look(f"{tmp_path}/m.gguf", "", "", {})
    assert (seen["kind"], seen["weights"]) == ("", "m.gguf, 4 bytes")


def test_a_cached_model_needs_no_hub(tmp_path: Path) -> None:
    put_in_cache(tmp_path)
    variables = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    seen = model.look("org/open", "", "", variables)
    assert (seen["kind"], seen["source"], seen["offline"]) == ("", "cache", True)
    assert seen["files"] == {"config.json": HASH}


def test_a_revision_may_be_a_commit(tmp_path: Path) -> None:
    put_in_cache(tmp_path, "0123abc")
    variables = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert model.look("org/open", "0123abc", "", variables)["kind"] == ""
    assert model.look("org/open", "other", "", variables)["kind"] == "offline"


def test_a_download_directory_wins_over_the_hubs_variables(tmp_path: Path) -> None:
    put_in_cache(tmp_path)
    variables = {"HF_HOME": "/nowhere", "HF_HUB_OFFLINE": "1"}
    assert model.look("org/open", "", str(tmp_path / "hub"), variables)["kind"] == ""


def test_d13_offline_and_not_cached_is_said_with_the_place(empty: dict[str, str]) -> None:
    seen = model.look("org/open", "", "", {**empty, "HF_HUB_OFFLINE": "yes"})
    assert seen["kind"] == "offline"
    assert f"{empty['HF_HOME']}/hub" in seen["where"]


def test_a_model_that_the_hub_gives_is_known_by_its_config(hub: Hub, empty: dict[str, str]) -> None:
    seen = model.look("org/open", "v1", "", {**empty, "HF_ENDPOINT": hub.url})
    assert (seen["kind"], seen["source"]) == ("", "hub")
    assert seen["files"] == {"config.json": HASH}
    assert hub.asked == [("/org/open/resolve/v1/config.json", None)]


def test_d13_a_gated_model_is_denied_without_the_token_and_open_with_it(
    hub: Hub, empty: dict[str, str]
) -> None:
    variables = {**empty, "HF_ENDPOINT": hub.url}
    seen = model.look("org/gated", "", "", variables)
    assert seen["kind"] == "denied"
    assert "HTTP 401, asked without a token" in seen["where"]
    assert model.look("org/gated", "", "", {**variables, "HF_TOKEN": "right"})["kind"] == ""
    wrong = model.look("org/gated", "", "", {**variables, "HF_TOKEN": "wrong"})
    assert (wrong["kind"], "wrong" in json.dumps(wrong)) == ("denied", False)


def test_a_name_that_the_hub_does_not_know_is_unknown(hub: Hub, empty: dict[str, str]) -> None:
    seen = model.look("org/nothing", "", "", {**empty, "HF_ENDPOINT": hub.url})
    assert seen["kind"] == "unknown"


def test_a_hub_that_does_not_answer_is_unreachable(empty: dict[str, str]) -> None:
    with Hub() as gone:
        url = gone.url
    seen = model.look("org/open", "", "", {**empty, "HF_ENDPOINT": url})
    assert seen["kind"] == "unreachable"
    assert "refused" in seen["where"]


def test_d13_the_token_goes_to_no_other_host_than_the_hub(hub: Hub, empty: dict[str, str]) -> None:
    variables = {**empty, "HF_ENDPOINT": hub.url, "HF_TOKEN": "right"}
    hub.elsewhere = hub.url
    assert model.look("org/moved", "", "", variables)["kind"] == ""
    assert [token for _, token in hub.asked] == ["Bearer right", "Bearer right"]
    hub.asked.clear()
    hub.elsewhere = hub.url.replace("127.0.0.1", "localhost")
    assert model.look("org/moved", "", "", variables)["kind"] == ""
    assert [token for _, token in hub.asked] == ["Bearer right", None]


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (b'{"model_type": "llama", "num_hidden_layers": 2}', []),
        (b'{"layer_types": ["full_attention", "full_attention"]}', ["full_attention"]),
        (
            b'{"text_config": {"layer_types": ["linear_attention", "full_attention"]}}',
            ["full_attention", "linear_attention"],
        ),
        (b'{"layers_block_type": ["mamba", "hybrid"]}', ["hybrid", "mamba"]),
        (b'{"hidden_size": 8, "mamba_d_state": 16}', ["mamba or linear attention"]),
        (b"not JSON", []),
        (b"[1, 2]", []),
    ],
)
def test_b06_kinds_of_layers_are_read_off_the_config(config: bytes, kinds: list[str]) -> None:
    assert model.layers(config) == kinds


def test_b06_kinds_of_layers_are_told_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"layer_types": ["sliding_attention", "attention"]}')
    assert model.look(str(tmp_path), "", "", {})["layers"] == ["attention", "sliding_attention"]
