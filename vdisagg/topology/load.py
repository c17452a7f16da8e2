"""Read a topology file: YAML, defaults, shape, cross-checks; every fault at once."""

from __future__ import annotations

import copy
import os
from pathlib import Path

from pydantic import ValidationError

from vdisagg.errors import Finding, TopologyError, UsageError
from vdisagg.topology import checks, defaults, mend, words, yaml_tree
from vdisagg.topology.fault import Fault, KeyPath, spell
from vdisagg.topology.flags import canonical
from vdisagg.topology.model import Topology


def load(path: Path) -> Topology:
    """The topology that a file describes.

    Raises UsageError when the file cannot be read, TopologyError with all findings when it says
    something wrong. Paths in the result are absolute: they were relative to the file's folder.
    """
    text = _text(path)
    tree = yaml_tree.read(text)
    topology, faults = _understand(tree, path)
    findings = [
        _finding(path, yaml_tree.Mark(*place), fault) for place, fault in _placed(tree, faults)
    ]
    if findings:
        raise TopologyError(findings)
    assert topology is not None  # no topology without faults: _understand says why
    return topology


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"{path}: there is no such file; topologies/demo.yaml is one to start from"
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path}: this is a folder; name a topology file in it") from None
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read: {exc.strerror}; check its permissions") from exc
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        column = exc.start - raw.rfind(b"\n", 0, exc.start)
        what = f"byte 0x{raw[exc.start]:02X} is not UTF-8"
        raise TopologyError(
            [Finding(str(path), line, column, "", what, "save the file as UTF-8")]
        ) from exc


def _understand(tree: yaml_tree.Tree, path: Path) -> tuple[Topology | None, list[Fault]]:
    """The topology, or the faults that keep it from being one (some may be in the tree already)."""
    if tree.marked_faults and tree.value is None:
        return None, []
    if not isinstance(tree.value, dict):
        needs = "a topology is a map with model, nodes, prefill and decode"
        got = words.kind_of(tree.value)
        return None, tree.faults or [Fault((), f"should be a map; got {got}", needs)]
    value = copy.deepcopy(tree.value)
    defaults.fill(value, stem=path.stem, folder=_folder(path))
    topology, shape = _validate(value)
    known = list(tree.faults)
    known += [fault for fault in shape if not _follows(fault, known)]
    if topology is None or known:
        # Mend what is wrong, so that the cross-checks can report in the same breath.
        topology, _ = _validate(mend.mended(value, [*tree.faults, *shape]))
    if topology is not None:
        nodes_known = not any(fault.path[:1] == ("nodes",) for fault in known)
        crossed = checks.check(topology, gpus=nodes_known)
        known += [fault for fault in crossed if not _follows(fault, known)]
    return topology, known


def _folder(path: Path) -> Path:
    return Path(os.path.abspath(path)).parent  # noqa: PTH100 - resolve() would follow symlinks


def _validate(value: dict[str, object]) -> tuple[Topology | None, list[Fault]]:
    try:
        return Topology.model_validate(value), []
    except ValidationError as exc:
        return None, words.faults(exc)


def _follows(fault: Fault, known: list[Fault]) -> bool:
    """Whether `fault` may be nothing but a consequence of one that is reported already."""
    return any(
        earlier.touches(fault.path) for earlier in known if earlier.path and not earlier.at_key
    )


def _placed(tree: yaml_tree.Tree, faults: list[Fault]) -> list[tuple[tuple[int, int], Fault]]:
    for key in list(tree.keys):
        if len(key) > 1 and key[-2] == "args":
            spelt: KeyPath = (*key[:-1], canonical(str(key[-1]), None)[0])
            tree.keys.setdefault(spelt, tree.keys[key])
            tree.values.setdefault(spelt, tree.values[key])
    placed = [((mark.line, mark.column), fault) for mark, fault in tree.marked_faults]
    for fault in faults:
        mark = tree.mark(fault.path, at_key=fault.at_key)
        placed.append(((mark.line, mark.column), fault))
    return placed


def _finding(path: Path, mark: yaml_tree.Mark, fault: Fault) -> Finding:
    return Finding(str(path), mark.line, mark.column, spell(fault.path), fault.what, fault.next)
