"""What is wrong with a file's shape, in plain words instead of pydantic's."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vdisagg.topology import keys
from vdisagg.topology.fault import Fault, KeyPath

_EXAMPLES: dict[str, str] = {
    "model": "say a hub name, or a path that starts with ./ ../ ~ or /",
    "nodes": "say `nodes: {here: {device: cpu}}` for this machine",
    "prefill": "say `prefill: {node: NAME}`",
    "decode": "say `decode: {node: NAME}`",
    "host": "say the node's address, or its alias in ~/.ssh/config",
}


def faults(error: ValidationError) -> list[Fault]:
    """One fault for each error, in the file's order of keys."""
    details = error.errors(include_url=False)
    found = [_fault(detail) for detail in details]
    # Who wrote `modle:` need not be told as well that `model` is missing.
    meant = {
        (*detail["loc"][:-1], keys.nearest(detail["loc"]))
        for detail in details
        if detail["type"] == "extra_forbidden"
    }
    return [fault for fault in found if fault.what != "is missing" or fault.path not in meant]


def kind_of(value: object) -> str:
    """A value as a reader of the file would name it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list"
    return repr(value)


def _fault(detail: ErrorDetails) -> Fault:
    path: KeyPath = tuple(detail["loc"])
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "ours":
        return Fault(path, context["what"], context["next"])
    if kind == "extra_forbidden":
        return Fault(path, "there is no such key here", keys.advice(path), at_key=True)
    if kind == "missing":
        return Fault(path, "is missing", _EXAMPLES.get(str(path[-1]), ""))
    if kind == "too_short":
        return Fault(path, "should not be empty", _EXAMPLES.get(str(path[-1]), ""))
    due = _DUE.get(kind)
    what = due(context) if due else detail["msg"].removeprefix("Input ")
    return Fault(path, f"{what}; got {kind_of(detail['input'])}", _quote(kind, detail["input"]))


def _quote(kind: str, value: object) -> str:
    return "put it in quotes" if kind == "string_type" and isinstance(value, (int, float)) else ""


_DUE: dict[str, Callable[[dict[str, object]], str]] = {
    "int_type": lambda _: "should be a whole number",
    "int_from_float": lambda _: "should be a whole number",
    "float_type": lambda _: "should be a number",
    "string_type": lambda _: "should be text",
    "bool_type": lambda _: "should be true or false",
    "model_type": lambda _: "should be a map",
    "model_attributes_type": lambda _: "should be a map",
    "dict_type": lambda _: "should be a map",
    "tuple_type": lambda _: "should be a list",
    "list_type": lambda _: "should be a list",
    "literal_error": lambda context: f"should be {str(context['expected']).replace(chr(39), '')}",
    "greater_than": lambda context: f"should be more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"should be at least {context['ge']}",
    "less_than": lambda context: f"should be less than {context['lt']}",
    "less_than_equal": lambda context: f"should be at most {context['le']}",
}
