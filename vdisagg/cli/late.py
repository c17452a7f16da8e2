"""Commands that are made when they are asked for: making all of them takes longer than most of them do."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULES = {
    **dict.fromkeys(("up", "down", "status", "check", "connect"), "clusters"),
    **dict.fromkeys(("logs", "events"), "watching"),
    "bench": "bench",
}
"""Every command in the order of the help, and the module of this package that has it."""


class LateGroup(TyperGroup):
    """The commands of MODULES. Asked for one, it makes that one; the help makes all of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # For who looks at the names only, to tell what a misspelt one may have meant.
        self.commands: Mapping[str, Any] = dict.fromkeys(MODULES)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _made(cmd_name) if cmd_name in MODULES else None


def _made(name: str) -> Any:
    """The command, or the group of commands, of that name."""
    module: typer.Typer = import_module(f"vdisagg.cli.{MODULES[name]}").commands
    alone = typer.Typer()
    alone.registered_groups = [group for group in module.registered_groups if group.name == name]
    alone.registered_commands = [
        command
        for command in module.registered_commands
        if command.callback is not None and command.callback.__name__ == name
    ]
    return typer.main.get_group(alone).commands[name]
