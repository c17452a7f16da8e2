"""How KV moves, seen by the plan: one module per connector, looked up by its name in the file."""

from __future__ import annotations

from typing import Protocol

from vdisagg.errors import UsageError
from vdisagg.plan.connectors import nixl
from vdisagg.plan.model import Address, Role


class Connector(Protocol):
    """What the plan asks of a connector module."""

    def ports_needed(self) -> int:
        """Ports that one engine's connector listens on, on the engine's node."""

    def settings(self, role: Role, *, device: str, lease_s: float) -> dict[str, object]:
        """The value of `--kv-transfer-config`. `lease_s` is `timeouts.lease_s`."""

    def environment(self, address: Address) -> dict[str, str]:
        """Variables of an engine whose connector listens at `address` (the first of its ports)."""


_BY_NAME: dict[str, Connector] = {"nixl": nixl.Nixl()}


def find(name: str) -> Connector:
    """The connector of that name. Raises UsageError when there is none."""
    try:
        return _BY_NAME[name]
    except KeyError:
        known = ", ".join(_BY_NAME)
        raise UsageError(f"connector {name!r} is not offered; say one of: {known}") from None
