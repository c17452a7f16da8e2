"""What all engines, or all nodes, must have alike: settings, versions, the model. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdisagg.cluster.findings import Finding
from vdisagg.launch.preflight import argv
from vdisagg.plan.versions import KNOWN_VERSIONS, is_known, public_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vdisagg.cluster.findings import Level
    from vdisagg.launch.preflight.facts import Model, Vllm
    from vdisagg.plan.model import Plan

ALL = "all"
"""Stands for the node where a finding is about the plan itself."""

SETTINGS: dict[str, str] = {
    "block-size": "",
    "kv-cache-dtype": "auto",
    "dtype": "auto",
    "revision": "main",
    "attention-backend": "",
    "disable-hybrid-kv-cache-manager": "no",
    "hf-overrides": "",
}
"""Flags that shape the KV cache, each with its default where that is the same everywhere. All but the
block size are in the connector's own compatibility hash (vLLM 0.32, nixl/metadata.py)."""

VARIABLES = ("VLLM_KV_CACHE_LAYOUT", "VLLM_ATTENTION_BACKEND")
DEFAULT = "(default)"


def settings(plan: Plan) -> list[Finding]:
    """Settings that differ between engines and may not."""
    findings = []
    for flag, usual in SETTINGS.items():
        said = {i.name: argv.value(i.process.argv, flag) for i in plan.instances}
        meant = {name: value or usual or DEFAULT for name, value in said.items()}
        if len(set(meant.values())) > 1:
            # Whether the default is what the others say depends on device and model.
            sure = DEFAULT not in meant.values()
            key = flag.replace("-", "_")
            findings.append(_unequal(f"--{flag}", meant, f"engine.args.{key}", sure))
    for variable in VARIABLES:
        found = {i.name: i.process.env.get(variable, DEFAULT) for i in plan.instances}
        if len(set(found.values())) > 1:
            sure = DEFAULT not in found.values()
            findings.append(_unequal(variable, found, f"engine.env.{variable}", sure))
    return findings


def _unequal(what: str, values: Mapping[str, str], key: str, sure: bool) -> Finding:
    return Finding(
        node=ALL,
        what=what,
        found=grouped(values),
        expected="the same for all prefill and decode engines",
        next=f"say it once, as `{key}`",
        level="error" if sure else "warning",
    )


def grouped(values: Mapping[str, str]) -> str:
    """`p0, p1: 16; d0: 32`."""
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in by_value.items())


def versions(plan: Plan, seen: Mapping[str, Vllm]) -> list[Finding]:
    """Versions that are missing, not known, or not the same on all nodes; by node's name in `seen`."""
    engines = {instance.process.node for instance in plan.instances}
    told = {node: vllm.versions for node, vllm in seen.items() if not vllm.kind}
    findings = []
    for node, found in told.items():
        wanted = ("vllm", "torch", plan.connector) if node in engines else ("vllm",)
        findings += [_missing(node, seen[node], name) for name in wanted if not found.get(name)]
        if found.get("vllm") and not is_known(found["vllm"]):
            findings.append(_unknown(node, found["vllm"]))
    for name in ("vllm", "torch", plan.connector):
        # Of the front end's node, vLLM alone counts, and of that only the protocol.
        of_engines = {n: v[name] for n, v in told.items() if n in engines and v.get(name)}
        everywhere = {n: v[name] for n, v in told.items() if v.get(name)}
        if name == "vllm" and len(set(map(public_part, everywhere.values()))) > 1:
            findings.append(_differing(name, everywhere, "error"))
        elif len(set(of_engines.values())) > 1:
            findings.append(_differing(name, of_engines, _gravity(name, of_engines)))
    return findings


def _gravity(name: str, told: Mapping[str, str]) -> Level:
    """vLLM's whole version, `+cu130` included, is in the connector's compatibility hash; of others
    only the public part matters."""
    same_release = len(set(map(public_part, told.values()))) == 1
    return "warning" if same_release and name != "vllm" else "error"


def _missing(node: str, vllm: Vllm, name: str) -> Finding:
    return Finding(
        node=node,
        what=name,
        found=f"not installed for {vllm.python}",
        expected=f"{name} beside the node's vLLM",
        next=f"install {name} there, or name another `python:` or `vllm:` in nodes.{node}",
    )


def _unknown(node: str, version: str) -> Finding:
    known = " or ".join(KNOWN_VERSIONS)
    return Finding(
        node=node,
        what="vllm",
        found=version,
        expected=known,
        next=f"install vLLM {known} there: the engine protocol of others is not known",
    )


def _differing(name: str, told: Mapping[str, str], level: Level) -> Finding:
    return Finding(
        node=ALL,
        what=name,
        found=grouped(told),
        expected="the same version on all nodes",
        next="install the same one everywhere",
        level=level,
    )


def models(plan: Plan, seen: Mapping[str, Model]) -> list[Finding]:
    """Files of the model that are not the same on all nodes; by node's name in `seen`."""
    whole = {node: model for node, model in seen.items() if not model.kind}
    names = dict.fromkeys(name for model in whole.values() for name in model.files)
    findings = []
    for name in names:
        # From the hub only the config has been read.
        nodes = {n: m for n, m in whole.items() if m.source != "hub" or name in m.files}
        values = {n: m.files.get(name, "")[:12] or "not there" for n, m in nodes.items()}
        findings += _unequal_files(name, values, nodes.values())
    engines = {instance.process.node for instance in plan.instances}
    loading = {n: m for n, m in whole.items() if m.source != "hub" and n in engines}
    sizes = {n: m.weights[:12] or "none" for n, m in loading.items()}
    findings += _unequal_files("the weights' names and sizes", sizes, loading.values())
    return findings + _hybrid(whole.values())


def _hybrid(models: Iterable[Model]) -> list[Finding]:
    """Of such models earlier versions of vLLM took a failed receive for a finished one, and answered with
    garbage: vllm-project/vllm #52234, seen on 0.29 and still open. By its source 0.32 reports such a
    request by its id, and `kv_load_failure_policy: fail`, which the plan says, ends it in an error."""
    kinds = sorted({kind for model in models for kind in model.layers})
    if len(kinds) < 2 and "mamba or linear attention" not in kinds:
        return []
    return [
        Finding(
            node=ALL,
            what="model, kinds of layers",
            found=", ".join(kinds),
            expected="a KV transfer that fails ends its request in an error: so it does in vLLM 0.32 by "
            "its source; 0.29 answered with garbage (vllm-project/vllm #52234)",
            next="compare some answers with a plain engine's: vdisagg's tests have no such model",
            level="note",
        )
    ]


def _unequal_files(name: str, values: Mapping[str, str], models: Iterable[Model]) -> list[Finding]:
    if len(set(values.values())) < 2:
        return []
    fixed = all(model.offline for model in models)
    return [
        Finding(
            node=ALL,
            what=f"model, {name}",
            found=f"SHA-256 {grouped(values)}",
            expected="the same on all nodes",
            next="copy one node's folder to the others"
            if fixed
            else "name the model's `revision` in engine.args: the hub may have changed meanwhile",
            level="error" if fixed else "warning",
        )
    ]
