"""What `up` and `down` say at their end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from vdisagg.view.text import columns, duration

if TYPE_CHECKING:
    from vdisagg.cluster.snapshot import DownResult, UpResult


def up_text(result: UpResult) -> str:
    """Where it serves, how to ask, where its logs and state are, how to take it down."""
    if result.already:
        first = f"cluster {result.name} is up already at {result.url}"
    else:
        first = f"cluster {result.name} is up at {result.url} after {duration(result.elapsed_s)}"
    key = " -H 'authorization: Bearer YOUR_KEY'" if result.needs_key else ""
    body = {"model": result.model, "prompt": "The capital of France is", "max_tokens": 8}
    # The body stands in single quotes for the shell, in which only a single quote is special.
    quoted = json.dumps(body).replace("'", "'\\''")
    names = columns([(f"  log of {name}", path) for name, path in result.log_files.items()])
    return "\n".join(
        (
            first,
            f"  ask        curl -s {result.url}/v1/completions{key} "
            f"-H 'content-type: application/json' -d '{quoted}'",
            f"  state      {result.state_file}",
            f"  look       vdisagg status --name {result.name}",
            f"  take down  vdisagg down --name {result.name}",
            *names,
        )
    )


def down_text(result: DownResult) -> str:
    """What was ended, and where the logs stay."""
    if not result.ran:
        return f"cluster {result.name}: nothing runs"
    count = sum(map(len, result.ended.values()))
    lines = [f"cluster {result.name} is down: {count} processes ended, none left; logs stay in"]
    lines += [f"  {path}" for path in result.log_files.values()]
    lines += [f"{name} is not ours to end: end it where it was started" for name in result.not_ours]
    return "\n".join(lines)


def result_json(result: UpResult | DownResult) -> str:
    """The same for programs."""
    return msgspec.json.format(msgspec.json.encode(result)).decode()
