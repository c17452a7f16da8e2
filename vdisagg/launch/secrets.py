"""Reads secrets at launch, from the launching shell's environment or from files; keeps them nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vdisagg.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vdisagg.plan.model import Process, Secret


def read_secrets(
    processes: Iterable[Process], environment: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Variable → value for each process, by process name.

    Raises UsageError that names every variable or file that is missing or empty.
    """
    values: dict[str, dict[str, str]] = {}
    faults: dict[str, None] = {}  # in order, each once: several processes may want the same
    for process in processes:
        values[process.name] = {}
        for secret in process.secrets:
            value, fault = _read(secret, environment)
            values[process.name][secret.variable] = value
            if fault:
                faults[fault] = None
    if faults:
        raise UsageError("\n".join(faults))
    return values


def _read(secret: Secret, environment: Mapping[str, str]) -> tuple[str, str]:
    """The value, and what is wrong with it if anything is."""
    if secret.from_env is not None:
        value = environment.get(secret.from_env, "")
        where = f"environment variable {secret.from_env}"
        return value, "" if value else f"{where} is not set; next: export {secret.from_env}=…"
    path = Path(secret.from_file or "").expanduser()
    where = f"{path} (for {secret.variable})"
    try:
        value = path.read_text().strip()
    except UnicodeDecodeError:
        return "", f"{where}: is not text; next: put the key alone into it"
    except OSError as exc:
        return "", f"{where}: {exc.strerror}; next: create it, readable by you alone"
    return value, "" if value else f"{where}: is empty; next: put the key into it"
