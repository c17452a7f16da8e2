"""The test bed as fixtures. Tests that need what this machine lacks are skipped, and say what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.bed import Bed
from hosts.network import Network, missing


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """A network without hosts."""
    if why := missing():
        pytest.skip(why)
    with Network(tmp_path) as made:
        yield made


@pytest.fixture
def bed(network: Network) -> Bed:
    """A network with a host for the command line."""
    return Bed(network)
