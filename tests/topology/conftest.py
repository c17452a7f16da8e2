"""A topology file from text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vdisagg.errors import TopologyError
from vdisagg.topology.load import load
from vdisagg.topology.model import Topology

Load = Callable[[str], Topology]
Complaints = Callable[[str], list[str]]


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    """Load a topology from text, in a file of its own called `t.yaml`."""

    def load_text(text: str) -> Topology:
        file = tmp_path / "t.yaml"
        file.write_text(textwrap.dedent(text))
        return load(file)

    return load_text


@pytest.fixture
def complaints(tmp_path: Path, loaded: Load) -> Complaints:
    """The lines of the error that a text gives, without the folder in front."""

    def lines_of(text: str) -> list[str]:
        with pytest.raises(TopologyError) as caught:
            loaded(text)
        assert caught.value.exit_code == 2
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return lines_of
