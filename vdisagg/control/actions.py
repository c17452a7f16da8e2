"""What dispatch asks the controller to do: frozen values, carried out at the sockets."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from vdisagg.control import wire

Pair = tuple[str, str]
"""A link's two ends: a prefill and a decode instance."""


class Send(msgspec.Struct, frozen=True):
    """A message for an engine. `frames` are the tensors behind it."""

    instance: str
    kind: bytes
    payload: bytes
    frames: Sequence[bytes] = ()


class Reply(msgspec.Struct, frozen=True):
    """Outputs for one API server of the front end. `timestamp` 0.0: there is no engine's, take ours."""

    api: int
    outputs: list[wire.Output]
    timestamp: float
    frames: Sequence[bytes] = ()
    weight_version: str | None = None


class Beat(msgspec.Struct, frozen=True):
    """A request's KV has arrived over a link.

    `matched`: whether decode's first token was prefill's; None where that can't be told (sampling). Of
    a `proof`: whether all its tokens are what the decode engine computes alone, near ties forgiven;
    `reason` says where they differ.
    """

    link: Pair
    latency_s: float
    probe: bool
    matched: bool | None
    proof: bool = False
    reason: str = ""


class Miss(msgspec.Struct, frozen=True):
    """A transfer, or a probe, failed on a link."""

    link: Pair
    probe: bool
    reason: str


class Tainted(msgspec.Struct, frozen=True):
    """A decode engine has, or may have, read what prefill had not written for it."""

    instance: str


class Note(msgspec.Struct, frozen=True):
    """Something that a person would want to know."""

    subject: str
    what: str


Action = Send | Reply | Beat | Miss | Tainted | Note
