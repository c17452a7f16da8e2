"""The test bed as fixtures. Tests that need what this machine lacks are skipped, and say what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.bed import Bed
from hosts.network import Network, missing


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are marked, so that `-m` can tell them from the fast ones."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.hosts)


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
