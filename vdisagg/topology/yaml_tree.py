"""YAML text to plain values, with the line and column of every key and value.

Stands on PyYAML's node tree (compose), not on its constructors: PyYAML reads YAML 1.1, where
`0755` is octal, `22:22` is 1342 and `no` is false, and where the last of two equal keys wins.
Everything that YAML 1.1 and 1.2 read differently is a fault here, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from vdisagg.topology.fault import Fault, KeyPath

MOST_VALUES = 100_000  # a topology has hundreds; aliases of aliases can make billions

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
_EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
_OCTAL_12 = re.compile(r"[-+]?0o[0-7]+")
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_STR = "tag:yaml.org,2002:str"
_QUOTE = "put it in quotes if it is text"


@dataclass(frozen=True)
class Mark:
    """A place in the file; both count from 1."""

    line: int
    column: int


@dataclass
class Tree:
    """A document's plain value (maps, lists, text, numbers, truth values, None) and its marks."""

    value: object = None
    keys: dict[KeyPath, Mark] = field(default_factory=dict)
    values: dict[KeyPath, Mark] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    marked_faults: list[tuple[Mark, Fault]] = field(default_factory=list)
    """Faults whose place is not the place of a key path: syntax, or the second of two keys."""

    def mark(self, path: KeyPath, *, at_key: bool = False) -> Mark:
        """Where `path` stands, or the nearest thing above it that stands in the file."""
        first, second = (self.keys, self.values) if at_key else (self.values, self.keys)
        for length in range(len(path), -1, -1):
            found = first.get(path[:length]) or second.get(path[:length])
            if found:
                return found
        return Mark(1, 1)


def read(text: str) -> Tree:
    """Parse one document. Never raises for what the text says: faults are in the tree."""
    tree = Tree()
    tabbed = _tabs(text, only_first_column=True)
    if tabbed:
        tree.marked_faults += tabbed
        return tree
    try:
        root = _compose(text)
    except yaml.MarkedYAMLError as exc:
        tree.marked_faults += _tabs(text, only_first_column=False) or [_syntax(exc)]
        return tree
    except yaml.reader.ReaderError as exc:
        before = text[: int(exc.position)]
        mark = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
        what = f"the character U+{ord(text[int(exc.position)]):04X} may not stand in YAML"
        tree.marked_faults.append((mark, Fault((), what, "remove it")))
        return tree
    except RecursionError:
        deep = Fault((), "lists or maps are nested too deeply", "a topology needs about six levels")
        tree.marked_faults.append((Mark(1, 1), deep))
        return tree
    if root is None:
        needs = "a topology needs at least model, nodes, prefill and decode"
        tree.marked_faults.append((Mark(1, 1), Fault((), "the file is empty", needs)))
        return tree
    _Reader(tree).read(root)
    return tree


def _compose(text: str) -> yaml.Node | None:
    loader = yaml.SafeLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _tabs(text: str, *, only_first_column: bool) -> list[tuple[Mark, Fault]]:
    """Lines indented with tabs. After the first column a tab may be content of a block of text."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        if line.strip() and "\t" in (indent[:1] if only_first_column else indent):
            mark = Mark(number, indent.index("\t") + 1)
            found.append((mark, Fault((), "a tab is used for indentation", "indent with spaces")))
    return found


def _syntax(exc: yaml.MarkedYAMLError) -> tuple[Mark, Fault]:
    place = exc.problem_mark or exc.context_mark
    mark = Mark(place.line + 1, place.column + 1) if place else Mark(1, 1)
    problem = exc.problem or exc.context or "cannot be read"
    if "expected a single document" in str(exc.context):
        return mark, Fault((), "a second document begins", "one file describes one cluster")
    if "mapping values are not allowed" in problem:
        return mark, Fault(
            (),
            "a `:` where no key can stand",
            "check the indentation, or quote text with `: ` in it",
        )
    return mark, Fault((), f"not valid YAML: {problem}", "check quotes, brackets and indentation")


class _Reader:
    """Walks a node tree once and fills a Tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.open: set[int] = set()
        """Nodes that are being read: an alias to one of them would never end."""
        self.count = 0

    def read(self, root: yaml.Node) -> None:
        self.tree.value = self._value(root, ())
        if self.count > MOST_VALUES:
            bomb = Fault((), f"aliases expand to more than {MOST_VALUES} values", "write less")
            self.tree.value, self.tree.faults = None, []
            self.tree.marked_faults = [(Mark(1, 1), bomb)]

    def _value(self, node: yaml.Node, path: KeyPath) -> object:
        self.tree.values[path] = _mark(node)
        self.count += 1
        if self.count > MOST_VALUES:
            return None
        if id(node) in self.open:
            self._refuse(path, "an alias contains itself", "write the values out")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self.open.add(id(node))
        try:
            return self._inner(node, path)
        finally:
            self.open.discard(id(node))

    def _inner(self, node: yaml.Node, path: KeyPath) -> object:
        kind = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != f"tag:yaml.org,2002:{kind}":
            self._refuse(path, f"the tag {_tag(node.tag)} is not offered", "write plain values")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._map(node, path)
        return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]

    def _map(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            inner = (*path, key)
            if key in result:
                first = self.tree.keys[inner]
                twice = Fault(
                    inner, f"the key stands twice; first at line {first.line}", "keep one"
                )
                self.tree.marked_faults.append((_mark(key_node), twice))
                continue
            self.tree.keys[inner] = _mark(key_node)
            result[key] = self._value(value_node, inner)
        return result

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        """The key's text, or None where there is none to go on with."""
        where = _mark(node)
        if not isinstance(node, yaml.ScalarNode):
            fault = Fault(path, "a list or a map stands as a key", "keys are words")
        elif node.tag == "tag:yaml.org,2002:merge":
            fault = Fault(
                (*path, "<<"),
                "merge keys are not offered",
                "say what all engines share under `engine:` and what one side shares under "
                "`prefill:` or `decode:`; plain aliases (`*name`) work",
            )
        else:
            value, not_plain = _plain(node)
            if not_plain is not None or not isinstance(value, str):
                what, next_ = not_plain or ("is not text", "put it in quotes")
                fault = Fault((*path, node.value), f"the key {what}", next_)
                self.tree.marked_faults.append((where, fault))
            return str(node.value)
        self.tree.marked_faults.append((where, fault))
        return None

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        value, fault = _plain(node)
        if fault is not None:
            self._refuse(path, *fault)
        return value

    def _refuse(self, path: KeyPath, what: str, next_: str) -> None:
        self.tree.faults.append(Fault(path, what, next_))


_RESOLVER = yaml.SafeLoader("")


def _plain(node: yaml.ScalarNode) -> tuple[object, tuple[str, str] | None]:
    """A scalar's value, or (what, next) where YAML 1.1 and 1.2 would read it differently."""
    text = node.value
    if node.style is not None or node.tag == _STR != _implicit(text):
        # Quoted or a block of text, or tagged !!str by hand.
        if node.tag != _STR:
            return None, (f"the tag {_tag(node.tag)} is not offered", "write plain values")
        return text, None
    if node.tag != _implicit(text):
        return None, (f"the tag {_tag(node.tag)} is not offered", "write plain values")
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None, None
    if kind == "bool" or text.lower() in ("y", "n"):
        if text in _TRUTH:
            return _TRUTH[text], None
        return None, (
            f"`{text}` means true or false to some YAML readers",
            "write true or false, or " + _QUOTE,
        )
    if kind == "int" and _INT.fullmatch(text):
        return int(text), None
    if kind == "float" and _FLOAT.fullmatch(text):
        return float(text), None
    if kind == "str" and not (_EXPONENT.fullmatch(text) or _OCTAL_12.fullmatch(text)):
        return text, None
    return None, _surprise(kind, text)


def _surprise(kind: str, text: str) -> tuple[str, str]:
    digits = text.lstrip("-+")
    if kind == "timestamp":
        return f"`{text}` is a date in YAML", _QUOTE
    if ":" in text:
        return f"`{text}` is a number in base 60 to some YAML readers", "put it in quotes"
    if "_" in text:
        return f"`{text}` has underscores, which only some YAML readers take for a number", (
            f"write {text.replace('_', '')}, or {_QUOTE}"
        )
    if (digits[:1] == "0" and len(digits) > 1 and kind == "int") or _OCTAL_12.fullmatch(text):
        return f"`{text}` is octal, binary or hexadecimal to some YAML readers", (
            f"write a decimal number, or {_QUOTE}"
        )
    if kind in ("float", "str"):
        return f"`{text}` is a number only to some YAML readers", f"write it out, or {_QUOTE}"
    return f"`{text}` has a special meaning in YAML", _QUOTE


def _implicit(text: str) -> str:
    return str(_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
