"""The model as a node has it: hashes of its small files, from a folder, the hub's cache or the hub."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from http.client import HTTPMessage
    from typing import IO

    Value = dict[str, Any]
    Environment = Mapping[str, str]

HUB = "https://huggingface.co"  # where HF_ENDPOINT names no other
HUB_LIMIT_S = 10.0
CONFIG = "config.json"
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "chat_template.jinja",
)
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
MOST_BYTES = 64 << 20  # the largest tokenizers are half of that


def look(name: str, revision: str, cache: str, environment: Environment) -> Value:
    """`kind`: "" | missing | no-config | offline | denied | unknown | unreachable | unchecked.

    `source`: path, cache or hub. `files`: SHA-256 of each small file by name. `weights`: SHA-256
    over names and sizes, "" where there are none to see. `cache` is a download directory, or "".
    """
    if name.startswith(("/", "~")):
        return look_in_folder(Path(name).expanduser())
    if is_true(environment.get("VLLM_USE_MODELSCOPE", "")):
        return answer("unchecked", "comes from ModelScope, which is not looked at")
    offline = any(
        is_true(environment.get(v, "")) for v in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    folder = cached(name, revision, cache, environment)
    if folder is not None:
        found = answer("", str(folder), "cache", offline)
        return {**found, "files": hashes(folder), "weights": weights(folder)}
    if offline:
        place = hub_cache(cache, environment)
        return answer("offline", f"not in {place}, and HF_HUB_OFFLINE is set", "cache", offline)
    return look_at_hub(name, revision, environment)


def answer(kind: str, where: str, source: str = "", offline: bool = False) -> Value:
    found: Value = {"kind": kind, "where": where, "source": source, "offline": offline}
    return {**found, "files": {}, "weights": ""}


def is_true(text: str) -> bool:
    return text.strip().upper() in ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads them


def look_in_folder(folder: Path) -> Value:
    try:
        if folder.is_file():  # a GGUF file is a whole model
            found = answer("", str(folder), "path", True)
            return {**found, "weights": f"{folder.name}, {folder.stat().st_size} bytes"}
        if not folder.is_dir():
            return answer("missing", f"{folder} does not exist", "path", True)
        files, sizes = hashes(folder), weights(folder)
    except OSError as exc:
        return answer("missing", f"{exc.filename}: {exc.strerror}", "path", True)
    kind = "" if CONFIG in files or "params.json" in files else "no-config"
    return {**answer(kind, str(folder), "path", True), "files": files, "weights": sizes}


def hashes(folder: Path) -> dict[str, str]:
    found = {}
    for name in (CONFIG, "params.json", *TOKENIZER):
        file = folder / name
        if file.is_file() and file.stat().st_size <= MOST_BYTES:
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def weights(folder: Path) -> str:
    """Reading them would take minutes; a copy that broke off shows in the sizes."""
    sizes = sorted(
        (file.name, file.stat().st_size) for file in folder.iterdir() if file.suffix in WEIGHTS
    )
    return hashlib.sha256(json.dumps(sizes).encode()).hexdigest() if sizes else ""


def hub_cache(cache: str, environment: Environment) -> Path:
    """As huggingface_hub/constants.py finds it."""
    if cache:
        return Path(cache).expanduser()
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(variable):
            return Path(environment[variable]).expanduser()
    return hub_home(environment) / "hub"


def hub_home(environment: Environment) -> Path:
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface"


def cached(name: str, revision: str, cache: str, environment: Environment) -> Path | None:
    """The snapshot's folder, where the cache has its config."""
    entry = hub_cache(cache, environment) / ("models--" + name.replace("/", "--"))
    commit = revision or "main"
    with contextlib.suppress(OSError):  # the revision may be a commit already
        commit = (entry / "refs" / commit).read_text().strip()
    folder = entry / "snapshots" / commit
    return folder if (folder / CONFIG).is_file() else None


class SameHost(urllib.request.HTTPRedirectHandler):
    """Takes the token along only to the host that it was given for."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        again = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if again is not None and token and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            again.add_unredirected_header("Authorization", token)
        return again


def look_at_hub(name: str, revision: str, environment: Environment) -> Value:
    base = (environment.get("HF_ENDPOINT") or HUB).rstrip("/")
    place = urllib.parse.quote(revision or "main", safe="")
    url = f"{base}/{urllib.parse.quote(name)}/resolve/{place}/{CONFIG}"
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "vdisagg"})
        token = token_of(environment)
        if token:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        proxies = {
            scheme: value
            for scheme in ("http", "https", "no")
            for value in [
                environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
            ]
            if value
        }
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), SameHost)
        with opener.open(request, timeout=HUB_LIMIT_S) as response:
            text = response.read(MOST_BYTES)
    except urllib.error.HTTPError as exc:
        exc.close()
        kind = {401: "denied", 403: "denied", 404: "unknown"}.get(exc.code, "unreachable")
        with_token = "with the token" if token else "without a token"
        return answer(kind, f"{url}: HTTP {exc.code}, asked {with_token}", "hub")
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "reason", exc)
        said = "timed out" if isinstance(reason, socket.timeout) else str(reason)
        return answer("unreachable", f"{url}: {said}", "hub")
    found = answer("", url, "hub")
    return {**found, "files": {CONFIG: hashlib.sha256(text).hexdigest()}}


def token_of(environment: Environment) -> str:
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environment.get(variable, "").strip():
            return environment[variable].strip()
    file = environment.get("HF_TOKEN_PATH") or str(hub_home(environment) / "token")
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError:
        return ""
