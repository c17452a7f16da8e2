"""Clusters of fakes for the controller's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.cluster import Cluster


@pytest.fixture
def cluster_of(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters of fakes: cluster_of(prefill, decode, …)."""
    made: list[Cluster] = []

    def make(prefill: int = 1, decode: int = 1, **options: object) -> Cluster:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        cluster = Cluster(directory, prefill, decode, **options)  # type: ignore[arg-type]
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()
