"""The model as a node has it: hashes of its small files, from a folder, the hub's cache or the hub."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    Value = dict[str, Any]
    Environment = Mapping[str, str]

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
    over names and sizes, "" where there are none to see. `layers`: kinds of layers that keep a state,
    as far as the config tells. `cache` is a download directory, or "".
    """
    if is_path(name):
        return look_in_folder(Path(name).expanduser())
    if is_true(environment.get("VLLM_USE_MODELSCOPE", "")):
        return answer("unchecked", "comes from ModelScope, which is not looked at")
    offline = any(
        is_true(environment.get(v, "")) for v in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    folder = cached(name, revision, cache, environment)
    if folder is not None:
        found = answer("", str(folder), "cache", offline)
        return {**found, **contents(folder)}
    if offline:
        place = hub_cache(cache, environment)
        return answer("offline", f"not in {place}, and HF_HUB_OFFLINE is set", "cache", offline)
    from vdisagg.launch.preflight.node import hub  # it travels only where this line is reached

    kind, where, text = hub.get(name, revision, CONFIG, environment, hub_home(environment))
    if kind:
        return answer(kind, where, "hub")
    files = {CONFIG: hashlib.sha256(text).hexdigest()}
    return {**answer("", where, "hub"), "files": files, "layers": layers(text)}


def is_path(name: str) -> bool:
    """Whether a model's name is no hub's."""
    return name.startswith(("/", "~"))


def answer(kind: str, where: str, source: str = "", offline: bool = False) -> Value:
    found: Value = {"kind": kind, "where": where, "source": source, "offline": offline}
    return {**found, "files": {}, "weights": "", "layers": []}


def is_true(text: str) -> bool:
    return text.strip().upper() in ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads them


def look_in_folder(folder: Path) -> Value:
    try:
        if folder.is_file():  # a GGUF file is a whole model
            found = answer("", str(folder), "path", True)
            return {**found, "weights": f"{folder.name}, {folder.stat().st_size} bytes"}
        if not folder.is_dir():
            return answer("missing", f"{folder} does not exist", "path", True)
        found = contents(folder)
    except OSError as exc:
        return answer("missing", f"{exc.filename}: {exc.strerror}", "path", True)
    kind = "" if CONFIG in found["files"] or "params.json" in found["files"] else "no-config"
    return {**answer(kind, str(folder), "path", True), **found}


def contents(folder: Path) -> Value:
    config = folder / CONFIG
    text = config.read_bytes() if config.is_file() else b""
    return {"files": hashes(folder), "weights": weights(folder), "layers": layers(text)}


def layers(config: bytes) -> list[str]:
    """Kinds of layers by the names that the config has for them; of two or more, vLLM keeps each
    kind's state in a group of its own. The keys are those that vLLM 0.32 looks at (config/model.py)."""
    try:
        whole = json.loads(config)
    except ValueError:
        return []
    parts = [part for part in (whole, *values(whole)) if isinstance(part, dict)]
    kinds: set[str] = set()
    for part in parts:
        for key in ("layer_types", "layers_block_type", "attn_type_list"):
            if isinstance(part.get(key), list):
                kinds.update(str(kind) for kind in part[key])
        if any(str(key).startswith(("mamba_", "linear_attn", "ssm_")) for key in part):
            kinds.add("mamba or linear attention")
    return sorted(kinds)


def values(config: Any) -> list[Any]:
    """Models of several parts have a config for each, such as `text_config`."""
    return list(config.values()) if isinstance(config, dict) else []


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
