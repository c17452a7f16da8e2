"""Which server a load goes to: one that the user names, or a running cluster's, by its record."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from vdisagg.bench.client import Target
from vdisagg.bench.insight import Insight
from vdisagg.cluster import record
from vdisagg.errors import Failure, UsageError


def given_target(url: str, model: str | None, api_key_env: str | None = None) -> Target:
    """A front end that the user names. Raises UsageError where the options don't fit together."""
    if model is None:
        raise UsageError("--url needs --model, the name that requests ask for")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: it must begin with http:// or https://")
    try:
        parts = urlsplit(url)
        named = parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        named = None
    if not named:
        raise UsageError(f"--url {url}: it must name a host, and a port from 1 to 65535 if any")
    if parts.username is not None:
        raise UsageError("--url holds a user's name; next: leave it out, and see --api-key-env")
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    return Target(url=base, model=model, api_key=_key(api_key_env))


def cluster_target(name: str, model: str | None = None, api_key_env: str | None = None) -> Target:
    """The front end of a running cluster, by its record. Raises Failure when none is recorded."""
    found = record.read(record.state_root() / name)
    if found is None:
        raise Failure(f"cluster {name} is not up; next: `vdisagg up` it, or give --url and --model")
    front_end = found.plan.front_end
    model = model or front_end.served_model_name
    return Target(url=front_end.url, model=model, api_key=_key(api_key_env))


def cluster_insight(name: str, *, colocated: bool = False) -> Insight:
    """What the controller of that cluster can say; see `Insight`."""
    return Insight(record.state_root() / name, colocated=colocated)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable, "").strip()):
        raise UsageError(f"--api-key-env {variable}: the variable is not set")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"--api-key-env {variable}: the key holds what no HTTP header can")
    return key
