"""The exact shell line that a person would type to start one process."""

from __future__ import annotations

import shlex

from vdisagg.plan.model import Process, Secret


def command_line(process: Process) -> str:
    """Variables and argv, quoted for a POSIX shell. Secrets are named, never shown.

    What the guard takes for the home directory (see launch/guard.py) a shell does too.
    """
    assignments = [f"{name}={_value(name, value)}" for name, value in process.env.items()]
    assignments += [_assignment(secret) for secret in process.secrets]
    return " ".join((*assignments, *map(_word, process.argv)))


def _value(variable: str, value: str) -> str:
    return (
        ":".join(map(_word, value.split(":"))) if variable == "PYTHONPATH" else shlex.quote(value)
    )


def _word(text: str) -> str:
    """Quoted, but for a `~/` in front, which stays special."""
    if text.startswith("~/"):
        return f"~/{shlex.quote(text[2:])}" if text != "~/" else text
    return shlex.quote(text)


def _assignment(secret: Secret) -> str:
    if secret.from_file is not None:
        return f'{secret.variable}="$(cat {shlex.quote(secret.from_file)})"'
    return f'{secret.variable}="${secret.from_env}"'
