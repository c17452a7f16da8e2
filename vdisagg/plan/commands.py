"""The exact shell line that a person would type to start one process."""

from __future__ import annotations

import shlex

from vdisagg.plan.model import Process, Secret


def command_line(process: Process) -> str:
    """Variables and argv, quoted for a POSIX shell. Secrets are named, never shown."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in process.env.items()]
    assignments += [_assignment(secret) for secret in process.secrets]
    return " ".join((*assignments, shlex.join(process.argv)))


def _assignment(secret: Secret) -> str:
    if secret.from_file is not None:
        return f'{secret.variable}="$(cat {shlex.quote(secret.from_file)})"'
    return f'{secret.variable}="${secret.from_env}"'
