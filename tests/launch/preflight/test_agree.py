"""What engines and nodes must have alike."""

from __future__ import annotations

import msgspec
import pytest

from fakes.two_nodes import instance, plan
from vdisagg.cluster.findings import Finding
from vdisagg.launch.preflight import agree
from vdisagg.launch.preflight.facts import Model, Vllm
from vdisagg.plan.versions import KNOWN_VERSIONS

V = KNOWN_VERSIONS[0]


def vllm(vllm: str = V, torch: str = "2.13.0", nixl: str = "1.5.1", kind: str = "") -> Vllm:
    versions = {"vllm": vllm, "torch": torch, "nixl": nixl}
    return Vllm(kind, "", "/opt/vllm", "/opt/python", "3.12.1", versions)


def model(config: str = "a", weights: str = "w", *, kind: str = "", source: str = "path") -> Model:
    files = {"config.json": config * 64} if not kind else {}
    return Model(kind, "/models/m", source, source == "path", files, weights)


def rows(findings: list[Finding]) -> list[tuple[str, str, str, str]]:
    return [(f.node, f.what, f.found, f.level) for f in findings]


def test_engines_of_equal_settings_agree() -> None:
    flags = ("--block-size", "16", "--dtype=bfloat16")
    both = plan(instance("p0", "n1", *flags), instance("d0", "n2", *flags, first=21010))
    assert agree.settings(both) == []


@pytest.mark.parametrize(
    ("flag", "mine", "other"),
    [
        ("block-size", "16", "32"),
        ("kv-cache-dtype", "fp8", "auto"),
        ("dtype", "bfloat16", "float16"),
        ("revision", "v1", "v2"),
        ("attention-backend", "FLASH_ATTN", "FLASHINFER"),
    ],
)
def test_d12_settings_of_the_kv_cache_that_differ_are_refused(
    flag: str, mine: str, other: str
) -> None:
    differing = plan(
        instance("p0", "n1", f"--{flag}", mine),
        instance("d0", "n2", f"--{flag}={other}", first=21010),
        instance("d1", "n2", f"--{flag}", mine, first=21020),
    )
    assert rows(agree.settings(differing)) == [
        ("all", f"--{flag}", f"p0, d1: {mine}; d0: {other}", "error")
    ]


def test_d12_what_one_side_leaves_to_a_known_default_counts_as_said() -> None:
    one = plan(
        instance("p0", "n1", "--kv-cache-dtype", "auto", "--dtype", "auto"),
        instance("d0", "n2", first=21010),
    )
    assert agree.settings(one) == []
    other = plan(instance("p0", "n1", "--dtype", "half"), instance("d0", "n2", first=21010))
    assert rows(agree.settings(other)) == [("all", "--dtype", "p0: half; d0: auto", "error")]


def test_d12_a_default_that_depends_on_the_device_is_a_warning() -> None:
    one = plan(instance("p0", "n1", "--block-size", "16"), instance("d0", "n2", first=21010))
    assert rows(agree.settings(one)) == [
        ("all", "--block-size", "p0: 16; d0: (default)", "warning")
    ]


def test_d12_layouts_that_differ_by_the_environment_are_refused() -> None:
    differing = plan(
        instance("p0", "n1", VLLM_KV_CACHE_LAYOUT="HND"),
        instance("d0", "n2", first=21010, VLLM_KV_CACHE_LAYOUT="NHD"),
    )
    assert rows(agree.settings(differing)) == [
        ("all", "VLLM_KV_CACHE_LAYOUT", "p0: HND; d0: NHD", "error")
    ]


def test_equal_and_known_versions_agree() -> None:
    assert agree.versions(plan(), {"here": vllm(), "n1": vllm(), "n2": vllm()}) == []


def test_d12_a_version_that_is_not_known_is_refused_with_the_known_ones() -> None:
    (one, *more) = agree.versions(plan(), {"n1": vllm("9.9.9")})
    assert more == []
    assert (one.node, one.found, one.expected, one.level) == ("n1", "9.9.9", V, "error")


@pytest.mark.parametrize("name", ["vllm", "torch", "nixl"])
def test_d12_versions_that_differ_are_refused_and_each_node_is_named(name: str) -> None:
    other = vllm(**{name: "1.0"})
    findings = agree.versions(plan(), {"here": vllm(), "n1": vllm(), "n2": other})
    one = next(f for f in findings if f.node == agree.ALL)
    assert (one.what, one.level) == (name, "error")
    assert one.found.endswith("; n2: 1.0")


def test_d12_builds_of_one_release_may_differ_but_for_vllms_own() -> None:
    """vLLM's version with its local part is in the connector's compatibility hash."""
    findings = agree.versions(plan(), {"n1": vllm(torch="2.13.0+cu130"), "n2": vllm()})
    assert [f.level for f in findings] == ["warning"]
    findings = agree.versions(plan(), {"n1": vllm(f"{V}+cu130"), "n2": vllm(f"{V}+cpu")})
    assert rows(findings) == [("all", "vllm", f"n1: {V}+cu130; n2: {V}+cpu", "error")]


def test_the_front_ends_node_needs_only_the_same_release_of_vllm() -> None:
    front = vllm(f"{V}+cpu", torch="", nixl="")
    assert agree.versions(plan(), {"here": front, "n1": vllm(), "n2": vllm()}) == []


def test_d12_an_engine_without_its_connector_is_refused() -> None:
    (one,) = agree.versions(plan(), {"n1": vllm(nixl=""), "n2": vllm()})
    assert (one.node, one.what, one.level) == ("n1", "nixl", "error")
    assert "/opt/python" in one.found


def test_a_node_whose_vllm_could_not_be_looked_at_does_not_differ() -> None:
    assert agree.versions(plan(), {"n1": vllm(), "n2": vllm("", "", "", kind="setup")}) == []


def test_d13_a_config_that_differs_is_refused_and_each_node_is_named() -> None:
    findings = agree.models(plan(), {"here": model(), "n1": model(), "n2": model("b")})
    assert rows(findings) == [
        ("all", "model, config.json", f"SHA-256 here, n1: {'a' * 12}; n2: {'b' * 12}", "error")
    ]


def test_d13_weights_of_other_sizes_are_refused_among_engines() -> None:
    findings = agree.models(plan(), {"n1": model(), "n2": model(weights="x")})
    assert [(f.what, f.level) for f in findings] == [
        ("model, the weights' names and sizes", "error")
    ]
    assert agree.models(plan(), {"here": model(weights=""), "n1": model(), "n2": model()}) == []


def test_a_hub_that_may_have_changed_since_is_a_warning() -> None:
    findings = agree.models(plan(), {"n1": model(source="cache"), "n2": model("b", source="hub")})
    assert [f.level for f in findings] == ["warning"]
    assert "revision" in findings[0].next


def test_a_node_without_the_model_differs_from_nobody() -> None:
    assert agree.models(plan(), {"n1": model(), "n2": model(kind="missing")}) == []


@pytest.mark.parametrize(
    ("layers", "noted"),
    [
        ((), False),
        (("full_attention",), False),
        (("full_attention", "linear_attention"), True),
        (("mamba or linear attention",), True),
    ],
)
def test_b06_a_model_with_layers_of_several_kinds_is_noted_once(
    layers: tuple[str, ...], noted: bool
) -> None:
    hybrid = msgspec.structs.replace(model(), layers=layers)
    findings = agree.models(plan(), {"here": hybrid, "n1": hybrid})
    assert [(f.level, f.found) for f in findings] == [("note", ", ".join(layers))] * noted
    assert all("#52234" in f.expected for f in findings)
